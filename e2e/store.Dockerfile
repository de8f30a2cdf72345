# An S3 server for the scenario of object stores: moto's, which keeps everything in memory.
ARG BASE=python:3.12-slim
FROM ${BASE}
RUN python3 -m venv --without-pip /opt/store \
 && python3 -m pip --python /opt/store/bin/python --disable-pip-version-check \
      install -q --no-cache-dir 'moto[s3,server]==5.2.5'
USER 10001:10001
CMD ["/opt/store/bin/moto_server", "-H", "0.0.0.0", "-p", "9000"]
