import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor


def run_query(query, model):
    cmd = ["claude", "-p", query, "--output-format", "stream-json"]
    if model:
        cmd.extend(["--model", model])
    env = {k: v for k, v in os.environ.items() if k != "CLAUDECODE"}
    process = subprocess.Popen(cmd, stdout=subprocess.PIPE, env=env)
    return process.communicate()[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--eval-set")
    parser.add_argument("--skill-path")
    parser.add_argument("--model")
    args = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        for item in json.load(open(args.eval_set)):
            print(pool.submit(run_query, item["query"], args.model).result(), file=sys.stderr)


main()
