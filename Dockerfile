# The project in an image: trains and measures the demo shop, and serves its model.
#   docker build -t minionerec .                        the builds of torch that the index has (they run on CPUs too)
#   docker build -t minionerec --build-arg TORCH_INDEX_URL=URL .    others, such as the index of CPU-only builds
#   docker run --rm -v "$PWD/runs:/app/runs" minionerec run demo
#   docker run --rm -p 8000:8000 -v "$PWD/runs:/app/runs" minionerec serve --host 0.0.0.0 --hosts localhost
FROM python:3.11-slim

# PyTorch's installation page names the index of CPU-only builds and those of other versions of CUDA.
ARG TORCH_INDEX_URL=
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 HF_HUB_DISABLE_TELEMETRY=1 TRL_EXPERIMENTAL_SILENCE=1 \
    PATH=/app/.venv/bin:$PATH
WORKDIR /app

RUN python -m venv .venv
COPY requirements requirements
RUN pip install --no-deps --require-hashes -r requirements/quickstart.txt \
    && pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} -c requirements/unhashed.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY minionerec minionerec
COPY configs configs
COPY ds_configs ds_configs
COPY data data
RUN pip install --no-build-isolation -e '.[plots,serve]'

RUN useradd --create-home minionerec && mkdir -p runs && chown -R minionerec runs
USER minionerec
VOLUME /app/runs
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD \
    python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz')" || exit 1
ENTRYPOINT ["minionerec"]
CMD ["run", "demo"]
