# One prefill group on CPU. Build from the repository's root:
#   docker build -f deploy/docker/prefill.Dockerfile --build-arg TORCH_ARGS="--index-url URL-OF-CPU-WHEELS" -t splash-prefill .
FROM python:3.11-slim AS engine
ARG TORCH_ARGS=""
WORKDIR /app
# Of the Mooncake transport.
RUN apt-get update \
 && apt-get install -y --no-install-recommends libibverbs1 libnuma1 libcurl4 \
 && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir ${TORCH_ARGS} torch==2.13.0
COPY pyproject.toml constraints.txt README.md ./
COPY splash_core splash_core
COPY services services
RUN pip install --no-cache-dir -c constraints.txt '.[mooncake]' \
 && useradd --uid 1000 --create-home splash
USER splash

FROM engine
EXPOSE 9001
ENTRYPOINT ["splash", "prefill", "--host", "0.0.0.0", "--port", "9001"]
