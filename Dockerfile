# One image for brokers, name servers, the operator and the orderlymq command; it runs whatever it is told:
#
#   docker build -t orderlymq:dev .
#   docker run --rm orderlymq:dev orderlymq --help
#
# Any Python from 3.11 on serves as BASE; both stages must have the same one.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /src
RUN python3 -m venv --without-pip /opt/orderlymq
COPY requirements/kubernetes.lock requirements/
RUN python3 -m pip --python /opt/orderlymq/bin/python --disable-pip-version-check \
      install -q --no-cache-dir -r requirements/kubernetes.lock
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY broker broker
COPY client client
COPY operator operator
COPY pipelines pipelines
RUN python3 -m pip --python /opt/orderlymq/bin/python --disable-pip-version-check \
      install -q --no-cache-dir --no-deps .
# The root file system is read-only later, so the bytecode is made here. The generated models of the Kubernetes
# client are the largest part by far, a process loads a few of them: those stay source.
COPY examples/python /opt/orderlymq/examples
RUN find /opt/orderlymq/lib/python3*/site-packages/kubernetes -name '*.pyc' -delete \
 && find /opt/orderlymq \( -name tests -o -name '*.pyx' -o -name '*.c' \) -prune -exec rm -rf {} +

FROM ${BASE}
LABEL org.opencontainers.image.title="OrderlyMQ" \
      org.opencontainers.image.description="Strictly ordered messaging for Kubernetes and laptops" \
      org.opencontainers.image.licenses="Apache-2.0"
# Some libraries look their user up and fail on a number without a line.
RUN echo 'orderlymq:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'orderlymq:x:10001:' >> /etc/group
COPY --from=build /opt/orderlymq /opt/orderlymq
ENV PATH=/opt/orderlymq/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 10001:10001
CMD ["orderlymq", "--help"]
