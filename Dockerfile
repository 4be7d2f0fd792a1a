# The demo in a container: docker build -t zbench . && docker run --rm --shm-size 1g zbench
# Another sweep: docker run --rm --shm-size 1g -v "$PWD:/work" -w /work zbench zbench sweep sweep.yaml
FROM python:3.11-slim
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir /src && rm -rf /src
WORKDIR /results
CMD ["zbench", "sweep", "quickstart"]
