"""A stand-in for a model: answers as a chat completions API, as a responses API and as a messages API, by a script.

It loads a skill, runs something of it, and says in the end what that printed. A request that does not carry on the
conversation as the API wants it is refused. Prints its port; ends when its stdin does.
"""

import http.server
import json
import re
import sys
import threading
import traceback

SKILL = "python-math"
COMMAND = "python scripts/python_math.py fib 100"
# The tools of docs/integrations.md for loops over gRPC, and those of `skillctl mcp`.
OVER_GRPC = [("list_skills", {}), ("load_skill", {"skill": SKILL}), ("run", {"skill": SKILL, "command": COMMAND})]
OVER_MCP = [("skill_load", {"skill": SKILL}), ("skill_run", {"skill": SKILL, "command": COMMAND})]


def next_step(tools, answers):
    """Returns the next call, a tool's name and its arguments, or the model's last words without a name.

    `tools` are names and schemas, `answers` the texts of the calls so far.
    """
    assert all(schema["type"] == "object" for _, schema in tools), tools
    names = [name for name, _ in tools]
    steps = OVER_GRPC if "run" in names else OVER_MCP
    if len(answers) < len(steps):
        wanted, arguments = steps[len(answers)]
        # Some frameworks put the name of the server before it.
        ((name, schema),) = [tool for tool in tools if re.fullmatch(f"(.*_)?{wanted}", tool[0])]
        # Some frameworks require every argument.
        required = {key: empty_value(schema["properties"][key]) for key in schema.get("required", [])}
        return name, required | arguments
    *_, loaded, ran = answers
    assert SKILL in answers[0] and f"# {SKILL}" in loaded, answers
    words = "It is " + re.search(r"(?:^|stdout\W+)(\d+)", ran)[1] + "."
    # smolagents ends a run by this tool.
    return ("final_answer", {"answer": words}) if "final_answer" in names else (None, words)


def empty_value(schema):
    """Returns the value by which a model leaves out an argument that it must give."""
    kind = schema.get("type")
    empty = {"string": "", "array": [], "object": {}, "integer": 0, "number": 0, "boolean": False}
    return empty[kind] if isinstance(kind, str) else None


def completions(body):
    tools = [(tool["function"]["name"], tool["function"]["parameters"]) for tool in body["tools"]]
    answers, asked = [], []
    for message in body["messages"]:
        asked += [call["id"] for call in message.get("tool_calls") or []]
        content = text_of(message.get("content"))
        if message["role"] == "tool":
            assert message["tool_call_id"] == asked[len(answers)], message
            answers.append(content)
        elif message["role"] == "user" and content.startswith("Observation:\n"):
            # smolagents carries on in words.
            answers.append(content)
    name, step = next_step(tools, answers)
    if name:
        function = {"name": name, "arguments": json.dumps(step)}
        call = {"id": f"call_{len(answers)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    else:
        message = {"role": "assistant", "content": step}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if name else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "chat_1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def responses(body):
    tools = [(tool["name"], tool["parameters"]) for tool in body["tools"]]
    asked = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
    given = [item for item in body["input"] if item.get("type") == "function_call_output"]
    assert [item["call_id"] for item in given] == asked, body["input"]
    name, step = next_step(tools, [text_of(item["output"]) for item in given])
    at = len(given)
    if name:
        item = {"type": "function_call", "id": f"fc_{at}", "call_id": f"call_{at}", "name": name}
        item |= {"arguments": json.dumps(step), "status": "completed"}
    else:
        content = [{"type": "output_text", "text": step, "annotations": []}]
        item = {"type": "message", "id": f"msg_{at}", "role": "assistant", "status": "completed", "content": content}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": f"resp_{at}",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }


def anthropic(body):
    assert body["max_tokens"] > 0
    tools = [(tool["name"], tool["input_schema"]) for tool in body["tools"]]
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"], roles
    answers = [
        block
        for message in body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert [answer["tool_use_id"] for answer in answers] == [f"toolu_{at}" for at in range(len(answers))]
    name, step = next_step(tools, [answer["content"] for answer in answers])
    if name:
        content = [{"type": "tool_use", "id": f"toolu_{len(answers)}", "name": name, "input": step}]
    else:
        content = [{"type": "text", "text": step}]
    return {"type": "message", "role": "assistant", "content": content}


def text_of(content):
    """Returns the text of a message's content, which is text or a list of blocks."""
    if isinstance(content, list):
        return "".join(block.get("text", "") for block in content)
    return content or ""


APIS = {"/v1/chat/completions": completions, "/v1/responses": responses, "/v1/messages": anthropic}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status, answer = 200, APIS[self.path](body)
        except Exception:  # No client tries a bad request again, and its error shows this text.
            status, answer = 400, {"error": {"message": traceback.format_exc()}}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
