"""A stand-in for a model: answers as a chat completions API and as a messages API, by a script.

It asks for the skills, loads one, runs something of it, and says in the end what that printed. A request that does not
carry on the conversation as the API wants it is refused. Prints its port; ends when its stdin does.
"""

import http.server
import json
import sys
import threading

STEPS = [
    ("list_skills", {}),
    ("load_skill", {"skill": "python-math"}),
    ("run", {"skill": "python-math", "command": "python scripts/python_math.py fib 100"}),
]


def openai(body):
    names = [tool["function"]["name"] for tool in body["tools"] if tool["function"]["parameters"]["type"] == "object"]
    assert names == [name for name, _ in STEPS], names
    answers = [message for message in body["messages"] if message["role"] == "tool"]
    asked = [message for message in body["messages"] if message["role"] == "assistant"]
    assert len(asked) == len(answers)
    for message, answer in zip(asked, answers):
        assert message["tool_calls"][0]["id"] == answer["tool_call_id"]
    if len(answers) == len(STEPS):
        message = {"role": "assistant", "content": said([answer["content"] for answer in answers])}
    else:
        name, arguments = STEPS[len(answers)]
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{len(answers)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def anthropic(body):
    names = [tool["name"] for tool in body["tools"] if tool["input_schema"]["type"] == "object"]
    assert names == [name for name, _ in STEPS], names
    assert body["max_tokens"] > 0
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
    if len(answers) == len(STEPS):
        content = [{"type": "text", "text": said([answer["content"] for answer in answers])}]
    else:
        name, arguments = STEPS[len(answers)]
        content = [{"type": "tool_use", "id": f"toolu_{len(answers)}", "name": name, "input": arguments}]
    return {"type": "message", "role": "assistant", "content": content}


def said(answers):
    listed, loaded, ran = answers
    assert "python-math" in listed and "# python-math" in loaded, answers
    return f"It is {ran.splitlines()[0]}."


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"/v1/chat/completions": openai, "/v1/messages": anthropic}[self.path](body)
        data = json.dumps(answer).encode()
        self.send_response(200)
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
