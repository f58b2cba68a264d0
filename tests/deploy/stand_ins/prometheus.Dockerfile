# Stands in for prom/prometheus:v3.5.0 where no image can be pulled: the program of Debian's package, 2.42 in bookworm.
FROM python:3.13-slim-bookworm
RUN install -d -o nobody -g nogroup /prometheus
COPY prometheus /usr/local/bin/
USER nobody
VOLUME /prometheus
WORKDIR /prometheus
ENTRYPOINT ["prometheus"]
