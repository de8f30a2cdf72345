# One image for brokers, name servers, the operator and the orderlymq command; it runs whatever its arguments say:
#
#   docker build -t orderlymq:dev .
#   docker run --rm orderlymq:dev orderlymq --help
#
# And one with Spark and a Java for the drivers and executors of Pipelines:
#
#   docker build --target spark -t orderlymq-spark:dev .
#
# Any Python from 3.11 on serves as BASE; all stages must have the same one, and a release names it by its digest
# (`make release-check` asks for it, for a tag is another image tomorrow). The modules that every message passes
# through are compiled (docs/adr/0013-compiled-modules.md), which takes a minute and a half and Debian's gcc; with
# --build-arg COMPILED=no, or where gcc cannot be had, the image runs the sources. Where Debian is reached by sources of
# one's own: --secret id=apt,src=FILE
#
# Labels name the version and the commit: --build-arg VERSION=0.1.0 --build-arg REVISION=$(git rev-parse HEAD).
ARG BASE=python:3.12-slim
ARG COMPILED=yes
# Those of pyproject.toml; tests/release compares them.
ARG VERSION=0.1.0
ARG SOURCE=https://github.com/orderlymq/orderlymq
ARG LICENSES=Apache-2.0
ARG REVISION=

FROM ${BASE} AS dependencies
RUN python3 -m venv --without-pip /opt/orderlymq
COPY requirements/kubernetes.lock .
RUN python3 -m pip --python /opt/orderlymq/bin/python --disable-pip-version-check \
      install -q --no-cache-dir -r kubernetes.lock
# The root file system is read-only later, so bytecode is made here; the generated models of the Kubernetes client
# are the largest part by far and a process loads few of them: they stay source. CPython uses zstandard's C
# extension, never the one for cffi.
RUN cd /opt/orderlymq/lib/python3*/site-packages \
 && find kubernetes -name '*.pyc' -delete \
 && rm -f zstandard/_cffi* \
 && find . \( -name tests -o -name '*.pyx' -o -name '*.c' \) -prune -exec rm -rf {} +

# gcc, and Python's headers where Python is Debian's: neither is in the image that this makes.
FROM dependencies AS compiler
ARG COMPILED
WORKDIR /src
COPY requirements/compile.lock .
RUN --mount=type=secret,id=apt,target=/etc/apt/sources.list.d/debian.sources \
    if [ "$COMPILED" = yes ] && apt-get update -qq -o Acquire::Retries=0 \
      && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends gcc libc6-dev \
         $(test -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || echo python3-dev) \
         >/dev/null; then \
      python3 -m pip --python /opt/orderlymq/bin/python --disable-pip-version-check \
        install -q --no-cache-dir -r compile.lock; \
    fi

FROM compiler AS build
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY broker broker
COPY client client
COPY operator operator
COPY pipelines pipelines
COPY console console
RUN python3 -m pip --python /opt/orderlymq/bin/python --disable-pip-version-check \
      install -q --no-cache-dir --no-deps --target /opt/orderlymq/own .
RUN if /opt/orderlymq/bin/python -c 'import mypyc, setuptools' 2>/dev/null; then \
      /opt/orderlymq/bin/python broker/compile.py /opt/orderlymq/own; \
    else \
      echo "The image runs the sources: COMPILED is no, or gcc could not be installed"; \
    fi

# Debian's Java, 17 or 21. Where Debian is reached by sources of one's own: --secret id=apt,src=FILE
FROM ${BASE} AS java
# Slim images have no folder for manual pages, and the package wants to link one.
RUN --mount=type=secret,id=apt,target=/etc/apt/sources.list.d/debian.sources \
    mkdir -p /usr/share/man/man1 \
 && apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends default-jre-headless >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*

FROM ${BASE} AS spark-dependencies
RUN python3 -m venv --without-pip /opt/orderlymq
COPY requirements/spark.lock .
RUN python3 -m pip --python /opt/orderlymq/bin/python --disable-pip-version-check \
      install -q --no-cache-dir -r spark.lock
# Examples, their data and tests are nobody's work in a pod; Arrow's headers are for compilers. Our pipelines keep
# no state in Spark, so its RocksDB, the largest jar by far, goes as well.
RUN cd /opt/orderlymq/lib/python3*/site-packages \
 && rm -rf pyspark/jars/rocksdbjni-*.jar pyspark/examples pyspark/data pyarrow/include zstandard/_cffi* \
 && find . \( -name tests -o -name '*.pyx' -o -name '*.c' \) -prune -exec rm -rf {} +

FROM java AS spark
ARG VERSION
ARG SOURCE
ARG LICENSES
ARG REVISION
LABEL org.opencontainers.image.title="OrderlyMQ pipelines" \
      org.opencontainers.image.description="Drivers and executors of OrderlyMQ's Spark pipelines" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.licenses="$LICENSES"
RUN echo 'orderlymq:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'orderlymq:x:10001:' >> /etc/group
COPY --from=spark-dependencies /opt/orderlymq /opt/orderlymq
# Spark gives a container `executor`, a Spark operator `driver`: both are programs here.
RUN mkdir -p /opt/orderlymq/spark \
 && for name in driver executor; do \
      printf '#!/bin/sh\nexec python -m orderlymq_spark.container %s "$@"\n' $name > /usr/local/bin/$name; \
      chmod 755 /usr/local/bin/$name; \
    done \
 && printf 'import sys\n\nfrom orderlymq_spark.driver import main\n\nsys.exit(main())\n' \
      > /opt/orderlymq/spark/main.py
COPY --from=build /opt/orderlymq/own /opt/orderlymq/own
ENV PATH=/opt/orderlymq/own/bin:/opt/orderlymq/bin:$PATH PYTHONPATH=/opt/orderlymq/own HOME=/tmp \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 10001:10001
CMD ["orderlymq", "pipeline", "list"]

# The last stage is what a build without --target makes.
FROM ${BASE}
ARG VERSION
ARG SOURCE
ARG LICENSES
ARG REVISION
LABEL org.opencontainers.image.title="OrderlyMQ" \
      org.opencontainers.image.description="Strictly ordered messaging for Kubernetes and laptops" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.licenses="$LICENSES"
# Some libraries look their user up and fail on a number without a line.
RUN echo 'orderlymq:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'orderlymq:x:10001:' >> /etc/group
# What changes with every build is the last and smallest layer.
COPY --from=dependencies /opt/orderlymq /opt/orderlymq
COPY --from=build /opt/orderlymq/own /opt/orderlymq/own
COPY examples/orders-app /opt/orderlymq/examples
ENV PATH=/opt/orderlymq/own/bin:/opt/orderlymq/bin:$PATH PYTHONPATH=/opt/orderlymq/own HOME=/tmp \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 10001:10001
CMD ["orderlymq", "--help"]
