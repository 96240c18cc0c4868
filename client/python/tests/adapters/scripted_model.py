"""A scripted model, and a server with which it answers as the APIs of OpenAI and Anthropic."""

import http.server
import itertools
import json
import re
import threading

import pytest

QUESTION = "What is the hundredth Fibonacci number?"
WORDS = "It is 354224848179261915075."
SKILL = "python-math"
COMMAND = "python scripts/python_math.py fib 100"
# The middle call fails. The model reads why, and goes on.
CALLS = [
    ("skill_load", {"skill": SKILL}),
    ("skill_run", {"skill": "no-such-skill", "command": "true"}),
    ("skill_run", {"skill": SKILL, "command": COMMAND}),
]
# Runs a test with a model that makes one call after another, and with one that makes all of them in one reply.
one_by_one_and_at_once = pytest.mark.parametrize("model", [False, True], ids=["one_by_one", "at_once"], indirect=True)


class ScriptedModel:
    """Makes calls one after another or all at once, and ends with the long number among the results."""

    def __init__(self, calls=CALLS, at_once=False):
        self.calls, self.at_once = calls, at_once
        self.tools, self.results = {}, []

    def reply(self, tools, results):
        """Returns the next calls, each an id, a name and arguments, and the last words if there are no calls.

        `tools` are the JSON Schemas of the offered tools by name, `results` the texts of all calls so far.
        """
        self.tools, self.results = tools, results
        left = [(f"call_{at}", *call) for at, call in enumerate(self.calls)][len(results) :]
        if left:
            return left if self.at_once else left[:1], None
        return [], f"It is {re.findall('[0-9]{20,}', ' '.join(results))[-1]}."

    def check_results(self, request=None):
        """Checks that the model got the result of each of `CALLS`, and the text of the skill.

        `request` is the body of the last request if that text may stand in a prompt, not in a result.
        """
        loaded, failed, ran = self.results
        assert SKILL in loaded, loaded
        assert f"# {SKILL}" in (json.dumps(request) if request else loaded), loaded
        assert "UNKNOWN_SKILL" in failed and "no-such-skill" in failed, failed
        assert '"exit_code"' in ran and "354224848179261915075" in ran, ran


def text_of(content):
    """Returns the text of a message's content, which is text or a list of blocks."""
    if isinstance(content, list):
        return "".join(block.get("text", "") for block in content)
    return content or ""


def answer_chat(model, body):
    """Returns a chat completion."""
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    asked = [call["id"] for message in body["messages"] for call in message.get("tool_calls") or []]
    given = [message for message in body["messages"] if message["role"] == "tool"]
    results = [text_of(message["content"]) for message in given]
    if "final_answer" in tools:  # smolagents gives results as words of the user, and ends by this tool.
        words = [text_of(message["content"]) for message in body["messages"] if message["role"] == "user"]
        results = [text for text in words if text.startswith(("Observation:", "Error:"))]
    else:
        assert sorted(message["tool_call_id"] for message in given) == sorted(asked), body["messages"]
    calls, words = model.reply(tools, results)
    if words and "final_answer" in tools:
        calls, words = [("call_end", "final_answer", {"answer": words})], None
    message = {"role": "assistant", "content": words}
    if calls:
        functions = [(call_id, {"name": name, "arguments": json.dumps(step)}) for call_id, name, step in calls]
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": it} for call_id, it in functions]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    completion = {"id": "chat_1", "object": "chat.completion", "created": 1, "model": "m"}
    return completion | {"choices": [choice], "usage": usage}


def answer_responses(model, body):
    """Returns a response."""
    tools = {tool["name"]: tool["parameters"] for tool in body["tools"]}
    asked = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
    given = [item for item in body["input"] if item.get("type") == "function_call_output"]
    assert sorted(item["call_id"] for item in given) == sorted(asked), body["input"]
    calls, words = model.reply(tools, [text_of(item["output"]) for item in given])
    output = [
        {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": name}
        | {"arguments": json.dumps(step), "status": "completed"}
        for call_id, name, step in calls
    ]
    if words:
        content = [{"type": "output_text", "text": words, "annotations": []}]
        output = [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}]
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
    response |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return response | {"output": output, "usage": usage}


def answer_messages(model, body):
    """Returns a message."""
    # The API takes successive messages of one role for one.
    roles = [role for role, _ in itertools.groupby(message["role"] for message in body["messages"])]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"], roles
    tools = {tool["name"]: tool["input_schema"] for tool in body["tools"]}
    lists = [message["content"] for message in body["messages"] if isinstance(message["content"], list)]
    blocks = [block for blocks in lists for block in blocks]
    asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
    given = [block for block in blocks if block["type"] == "tool_result"]
    assert sorted(block["tool_use_id"] for block in given) == sorted(asked), blocks
    calls, words = model.reply(tools, [text_of(block["content"]) for block in given])
    content = [{"type": "tool_use", "id": call_id, "name": name, "input": step} for call_id, name, step in calls]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    message |= {"content": content or [{"type": "text", "text": words}]}
    message |= {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    return message | {"usage": {"input_tokens": 1, "output_tokens": 1}}


APIS = {
    "/v1/chat/completions": answer_chat,
    "/v1/responses": answer_responses,
    "/v1/messages": answer_messages,
}


class ModelServer:
    """Server on the loopback that answers for a scripted model, and keeps the bodies of all requests."""

    def __init__(self, model):
        self.bodies = bodies = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                bodies.append(body)
                try:
                    status, answer = 200, APIS[self.path](model, body)
                except Exception as error:  # No client repeats a bad request, and its error shows this text.
                    status, answer = 400, {"error": {"message": repr(error)}}
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        # The interval is how long a shutdown takes.
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
