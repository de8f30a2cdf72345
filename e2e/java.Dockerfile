# A Java for examples/orders-app-java if no image can be pulled: Debian's, on the base of our own image.
ARG BASE
FROM ${BASE}
# Slim images have no folder for manual pages, in which the package creates a link.
RUN --mount=type=secret,id=apt,target=/etc/apt/sources.list.d/debian.sources \
    mkdir -p /usr/share/man/man1 \
 && apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends openjdk-17-jre-headless >/dev/null \
 && rm -rf /var/lib/apt/lists/*
