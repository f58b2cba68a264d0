"""Finds the language of a text by its most common words, to choose a stemmer."""

from __future__ import annotations

import re
from collections import Counter

_COMMON = {
    "danish": "og i at det er en til på som af med for ikke der den de et har fra om",
    "dutch": "de het een en van in is op te dat die voor met zijn niet aan er om ook als",
    "english": "the of and to in is that for it as with on be by this are or from at an",
    "finnish": "ja on ei että se oli kun mutta myös tai joka ovat sen mukaan sekä hän jos niin voi ole",
    "french": "le la les de des et en du un une est que dans pour qui par sur au pas ne",
    "german": "der die das und in den von zu mit ist des nicht für auf im dem ein eine als auch",
    "hungarian": "a az és hogy nem is egy meg ez csak vagy volt mint van ha ami azt már el fel",
    "italian": "il di e la che un in per è una del della sono con non le i si dei alla",
    "norwegian": "og i det er på som en til av for at med ikke har de den et om fra jeg",
    "portuguese": "o a de que e do da em um para com não uma os no se na por mais as",
    "romanian": "și de a în la cu pe care nu este din un o că sau pentru mai au prin fi",
    "russian": "и в не на что с по как это к из для от за или о а его при но",
    "spanish": "el la de que y en los del se las un por con una para no su al es lo",
    "swedish": "och i att det som en på är av för med till den inte de ett om har från vi",
    "turkish": "ve bir bu için ile olarak de da olan daha gibi en kadar sonra çok ne veya her o değil",
}
_WITHOUT_STEMMER = {
    "bulgarian": "и на в да се за с от не че по са е като до ще или при което след този между",
    "catalan": "de la i a el que en les els per del amb una un és al com no més dels o aquesta són",
    "croatian": "i u je na se za da su od s koji o kao ili iz ne što do te a će biti koja",
    "czech": "a v se na je že s z o do i k za ve pro by jako nebo ale od po jsou být není",
    "polish": "w i na z do się nie że jest o od za po przez dla jak oraz są lub przy tym a co ze",
    "slovak": "a v na sa je že s z o do aj k za vo pre by ako alebo ale od po sú byť",
    "ukrainian": "і в на з у та що до не за як для від це про або його є зі при після між",
}
"""Neighbours that share common words with a language above: without them Polish is taken for Portuguese."""
_LANGUAGES = {language: frozenset(words.split()) for language, words in (_COMMON | _WITHOUT_STEMMER).items()}
_MAX_CHARACTERS = 20_000
_LEAST_SHARE = 0.1
"""Of the words of a text: prose has some 0.3, a table of numbers or another language less."""


def language_of(text: str, otherwise: str) -> str:
    """Return the language, as Snowball names it, of a text's first part; `otherwise` if none is likely."""
    words = re.findall(r"[^\W\d_]+", text[:_MAX_CHARACTERS].lower())
    counts = Counter(words)
    shares = {language: sum(counts[word] for word in known) for language, known in _LANGUAGES.items()}
    likely = max(shares, key=shares.__getitem__)
    return likely if likely in _COMMON and shares[likely] > _LEAST_SHARE * len(words) else otherwise
