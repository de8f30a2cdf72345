# One image for brokers, name servers, the operator and the orderlymq command; it runs whatever it is told:
#
#   docker build -t orderlymq:dev .
#   docker run --rm orderlymq:dev orderlymq --help
#
# Any Python from 3.11 on serves as BASE; all stages must have the same one.
ARG BASE=python:3.12-slim

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

FROM dependencies AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY broker broker
COPY client client
COPY operator operator
COPY pipelines pipelines
RUN python3 -m pip --python /opt/orderlymq/bin/python --disable-pip-version-check \
      install -q --no-cache-dir --no-deps --target /opt/orderlymq/own .

FROM ${BASE}
LABEL org.opencontainers.image.title="OrderlyMQ" \
      org.opencontainers.image.description="Strictly ordered messaging for Kubernetes and laptops" \
      org.opencontainers.image.licenses="Apache-2.0"
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
