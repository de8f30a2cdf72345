# A Java for examples/orders-app-java where no image can be pulled: Debian's, on the base of our own image.
ARG BASE
FROM ${BASE}
RUN --mount=type=secret,id=apt,target=/etc/apt/sources.list.d/debian.sources \
    apt-get update -qq \
 && apt-get install -qq --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/*
