# The router with its OpenAI gateway: no torch. Build from the repository's root:
#   docker build -f deploy/docker/router.Dockerfile -t splash-router .
FROM python:3.11-slim
WORKDIR /app
COPY deploy/docker/router-requirements.txt ./
RUN pip install --no-cache-dir -r router-requirements.txt
COPY pyproject.toml README.md ./
COPY splash_core splash_core
COPY services services
RUN pip install --no-cache-dir --no-deps . \
 && useradd --uid 1000 --create-home splash
USER splash
EXPOSE 8000
ENTRYPOINT ["splash", "router", "--host", "0.0.0.0", "--port", "8000"]
