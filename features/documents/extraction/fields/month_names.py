"""Names of the months in the languages of documents, casefolded and without final points; written by
`lab/extraction/month_names.py` from CLDR (Unicode License v3), with those of Babel's locales
en de de_AT nl sv da nb fr es it pt ca ro pl cs sk sl hr ru uk bg el fi et lv lt hu tr id ar ar_SY he hi bn th.

A few name two months, as `listopad` does in Czech and in Croatian.
"""

from __future__ import annotations

MONTH_NAMES = (
    "ene enero gen gener gennaio ian ianuarie jaan jaanuar jan janeiro januar januari january január januára "
    "janv janvier janvāris jän jänner led leden ledna oca ocak saus sausio sausis sij siječanj siječnja sty "
    "styczeń stycznia tammi tammikuu tammikuuta ιαν ιανουάριοσ ιανουαρίου січ січень січня янв январь января "
    "яну януари ינואר ינו׳ كانون_الثاني يناير जनवरी जन॰ জানু জানুয়ারি ม.ค มกราคม",
    "feb febbraio feber febr febrer febrero februar februari februarie february február februára februāris fev "
    "fevereiro févr février helmi helmikuu helmikuuta lut lutego luty vas vasario vasaris veebr veebruar velj "
    "veljača veljače úno únor února şub şubat φεβ φεβρουάριοσ φεβρουαρίου лют лютий лютого фев февр февраль "
    "февраля февруари פברואר פבר׳ شباط فبراير फ़रवरी फ़र॰ ফেব ফেব্রুয়ারি ก.พ กุมภาพันธ์",
    "bře březen března kov kovas kovo maalis maaliskuu maaliskuuta maart maerz mar marca march marec maret mars "
    "mart martie marts marzec marzo març março mrt mrz márc március mär märts märz ožu ožujak ožujka μάρ "
    "μάρτιοσ μαρ μαρτίου бер березень березня мар март марта מרץ آذار مارس मार्च মার্চ มี.ค มีนาคม",
    "abr abril apr april aprile aprilie aprill apríl apríla aprīlis avr avril bal balandis balandžio dub duben "
    "dubna huhti huhtikuu huhtikuuta kwi kwiecień kwietnia nis nisan tra travanj travnja ápr április απρ "
    "απρίλιοσ απριλίου апр апрель апреля април квіт квітень квітня אפריל אפר׳ أبريل نيسان अप्रैल এপ্রি এপ্রিল "
    "เม.ย เมษายน",
    "geg gegužė gegužės kvě květen května mag maggio mai maig maijs maio maj maja may mayis mayo mei máj mája "
    "május svi svibanj svibnja touko toukokuu toukokuuta μάι μάιοσ μαΐ μαΐου май мая трав травень травня מאי "
    "أيار مايو मई মে พ.ค พฤษภาคม",
    "birž birželio birželis cze czerwca czerwiec giu giugno haz haziran iun iunie juin jun june junho juni "
    "junij junio juny juuni jún júna június jūn jūnijs kesä kesäkuu kesäkuuta lip lipanj lipnja červen června "
    "čvn ιουν ιουνίου ιούν ιούνιοσ июн июнь июня черв червень червня юни יוני حزيران يونيو जून জুন มิ.ย "
    "มิถุนายน",
    "heinä heinäkuu heinäkuuta iul iulie juil juillet jul julho juli julij julio juliol july juuli júl júla "
    "július jūl jūlijs liep liepa liepos lip lipca lipiec lug luglio srp srpanj srpnja tem temmuz července "
    "červenec čvc ιουλ ιουλίου ιούλ ιούλιοσ июл июль июля лип липень липня юли יולי تموز يوليو जुलाई जुल॰ জুল "
    "জুলাই ก.ค กรกฎาคม",
    "ago agost agosto agu agustus août aug august augusta augusti augusts augustus augusztus avg avgust ağu "
    "ağustos elo elokuu elokuuta kol kolovoz kolovoza rugp rugpjūtis rugpjūčio sie sierpień sierpnia srp srpen "
    "srpna αυγ αυγούστου αύγ αύγουστοσ авг август августа серп серпень серпня אוגוסט אוג׳ آب أغسطس अगस्त अग॰ আগ "
    "আগস্ট ส.ค สิงหาคม",
    "eyl eylül rugs rugsėjis rugsėjo ruj rujan rujna sep sept september septembra septembre septembrie "
    "septembris septiembre set setembre setembro settembre syys syyskuu syyskuuta szept szeptember wrz wrzesień "
    "września zář září σεπ σεπτέμβριοσ σεπτεμβρίου вер вересень вересня сент сентябрь сентября сеп септември "
    "ספטמבר ספט׳ أيلول سبتمبر सितंबर सित॰ সেপ সেপ্ট সেপ্টেম্বর ก.ย กันยายน",
    "eki ekim lis listopad listopada loka lokakuu lokakuuta oct october octobre octombrie octubre okt oktober "
    "oktobris oktoober október októbra ott ottobre out outubro paź październik października spal spalio spalis "
    "říj říjen října οκτ οκτωβρίου οκτώβριοσ жовт жовтень жовтня окт октомври октябрь октября אוקטובר אוק׳ "
    "أكتوبر تشرين_الأول अक्टूबर अक्टू॰ অক্টো অক্টোবর ต.ค ตุลาคม",
    "kas kasim lapkr lapkritis lapkričio lis listopad listopada listopadu marras marraskuu marraskuuta "
    "noiembrie nov november novembra novembre novembris novembro noviembre stu studeni studenoga νοέ νοέμβριοσ "
    "νοε νοεμβρίου лист листопад листопада ное ноември нояб ноябрь ноября נובמבר נוב׳ تشرين_الثاني نوفمبر नवंबर "
    "नव॰ নভে নভেম্বর พ.ย พฤศจิกายน",
    "ara aralik dec december decembra decembrie decembris des desember desembre dets detsember dez dezember "
    "dezembro dic dicembre diciembre déc décembre gru grudnia grudzień gruod gruodis gruodžio joulu joulukuu "
    "joulukuuta pro prosinac prosinca prosince prosinec δεκ δεκέμβριοσ δεκεμβρίου груд грудень грудня дек "
    "декабрь декабря декември דצמבר דצמ׳ ديسمبر كانون_الأول दिसंबर दिस॰ ডিসে ডিসেম্বর ธ.ค ธันวาคม",
)
"""By month from January on, separated by blanks; a blank within a name is `_`."""
