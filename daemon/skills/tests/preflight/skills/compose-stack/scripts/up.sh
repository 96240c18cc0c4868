#!/bin/bash
set -e
export COMPOSE_PROJECT_NAME=local
cd "$(git rev-parse --show-toplevel)"
docker compose up -d --wait || { docker compose logs; exit 1; }
until curl -fsS http://localhost:8080/health >/dev/null; do sleep 1; done
echo "up"
