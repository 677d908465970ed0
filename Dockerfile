# The whole project in an image: `docker build -t bolt .`, then `docker run --shm-size=2g bolt grid demo`.
# docs/cluster.md says how results leave the container, and how to have CUDA or not.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

# With the address of PyTorch's packages for CPUs, PyTorch comes from there and is a fifth as large. Without it, it is the
# CUDA build. Versions are those of the lock file in both cases.
ARG TORCH_INDEX=""
COPY requirements/test.txt pyproject.toml README.md LICENSE /src/
COPY bolt /src/bolt
COPY orchestrator /src/orchestrator
COPY grids /src/grids
RUN sed -n 's/^\([A-Za-z0-9][^ ]*==[^ ]*\).*/\1/p' /src/test.txt > /src/versions.txt \
    && if [ -n "$TORCH_INDEX" ]; then \
         pip install --no-cache-dir --constraint /src/versions.txt --index-url "$TORCH_INDEX" torch torchvision; fi \
    && pip install --no-cache-dir --constraint /src/versions.txt "/src[cluster]" \
    && rm -r /src

# KubeRay asks Ray with it whether it is well.
RUN apt-get update && apt-get install --yes --no-install-recommends wget && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 bolt && mkdir /work && chown bolt /work
USER bolt
WORKDIR /work
ENV BOLT_STORE=/work/runs RAY_USAGE_STATS_ENABLED=0
ENTRYPOINT ["orchestrator"]
CMD ["--help"]
