"""The official MCP client against `skillctl mcp`.

usage: mcp_client.py stdio SKILLCTL ENDPOINT | mcp_client.py http URL | mcp_client.py family FAMILY SKILLCTL ENDPOINT OPTIONS
Prints what it saw as JSON; mcp.rs judges it.
"""

import asyncio
import base64
import io
import json
import logging
import sys
import urllib.error
import urllib.request

import anyio
from mcp import Client, StdioServerParameters


def structured(result):
    """What a tool answered, which its text must hold too."""
    content = result.structured_content
    text = result.content[0].text
    return {"error": bool(result.is_error), "content": content, "text": text}


async def run(client, command, **more):
    arguments = {"skill": "csv-report", "command": command, **more}
    return structured(await client.call_tool("skill_run", arguments))


async def call_every_tool(client):
    saw = {}
    tools = (await client.list_tools()).tools
    saw["tools"] = [tool.name for tool in tools]
    saw["schemas"] = [tool.input_schema.get("type") for tool in tools]
    saw["skills"] = structured(await client.call_tool("skill_list", {}))
    saw["loaded"] = structured(await client.call_tool("skill_load", {"skill": "csv-report"}))
    saw["ran"] = await run(
        client, "echo hello | tee $OUTPUT_DIR/hello.txt", output_files=["out/*.txt"]
    )
    # Another call of the same session finds the file.
    saw["read"] = structured(
        await client.call_tool("read_file", {"file_name": "workspace://out/hello.txt"})
    )
    saw["files"] = await files(client)
    saw["annotations"] = {
        tool.name: tool.annotations.model_dump(exclude_none=True) for tool in tools
    }
    saw["failed"] = structured(await client.call_tool("skill_load", {"skill": "no-such-skill"}))

    saw["progress"] = await watched(client)
    saw["cancelled"] = await cancelled(client)
    saw["resources"] = await resources(client)
    return saw


# A tool and its arguments: what there is, what one says, running something of it.
FAMILIES = {
    "trpc": [
        ("skill_list", {}),
        ("skill_load", {"skill": "python-math"}),
        ("skill_run", {"skill": "python-math", "command": "python scripts/python_math.py fib 10"}),
        ("workspace_exec", {"command": "echo 55"}),
    ],
    "sherma": [
        ("list_skills", {}),
        ("load_skill_md", {"skill_id": "python-math"}),
        ("load_skill_md", {"skill_id": "python-math"}),
        ("list_skill_resources", {"skill_id": "python-math"}),
        (
            "run_skill_script",
            {"skill_id": "python-math", "script_path": "scripts/python_math.py", "argv": ["fib", "10"]},
        ),
        ("unload_skill", {"skill_id": "python-math"}),
    ],
    "agent-zero": [
        ("skills_tool", {"method": "list"}),
        ("skills_tool", {"method": "load", "skill_name": "python-math"}),
        (
            "skills_tool",
            {
                "method": "execute_script",
                "skill_name": "python-math",
                "script_path": "scripts/python_math.py",
                "argv": ["fib", "10"],
            },
        ),
    ],
}


async def family(client, name):
    """Calls of a family; the client checks each result against its tool's schema."""
    tools = (await client.list_tools()).tools
    schemas = {tool.name: tool.output_schema for tool in tools}
    answers = []
    for tool, arguments in FAMILIES[name]:
        answer = structured(await client.call_tool(tool, arguments))
        answers.append({"tool": tool, "schema": schemas[tool], **answer})
    return {"tools": [tool.name for tool in tools], "answers": answers}


async def watched(client):
    """Progress of a call whose command waits until the client has been notified twice."""
    told, enough = [], anyio.Event()

    async def progress(done, total, message):
        told.append([done, message])
        if len(told) == 2:
            enough.set()

    async def notified():
        await enough.wait()
        await run(client, "touch $WORK_DIR/told")

    command = "until [ -e $WORK_DIR/told ]; do sleep 0.1; done"
    async with anyio.create_task_group() as group:
        group.start_soon(notified)
        arguments = {"skill": "csv-report", "command": command}
        await client.call_tool("skill_run", arguments, progress_callback=progress)
    return told


async def cancelled(client):
    """Gives up a call that has begun; what it started must end."""
    async with anyio.create_task_group() as group:

        async def long():
            await run(client, "touch $WORK_DIR/began; exec sleep 347")

        group.start_soon(long)
        for _ in range(3000):
            probe = await run(client, "ls $WORK_DIR; grep -lx sleep /proc/[0-9]*/comm || true")
            lines = probe["content"]["stdout"].split()
            if "began" in lines and len(lines) > 1:
                break
        group.cancel_scope.cancel()
    for _ in range(3000):
        probe = await run(client, "grep -lx sleep /proc/[0-9]*/comm || echo gone")
        if "gone" in probe["content"]["stdout"]:
            return {"began": "began" in lines, "gone": True}
    return {"began": "began" in lines, "gone": False}


PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


async def files(client):
    """A file that goes in, one that is no text coming out, and what is listed of both."""
    arguments = {"path": "work/inputs/p.png", "content_base64": base64.b64encode(PNG).decode()}
    wrote = structured(await client.call_tool("workspace_write_file", arguments))
    await run(client, "cp $WORK_DIR/inputs/p.png $OUTPUT_DIR/q.png; printf '\\1\\0' > $OUTPUT_DIR/b")
    image = (await client.call_tool("read_file", {"file_name": "out/q.png"})).content[1]
    other = structured(await client.call_tool("read_file", {"file_name": "out/b"}))
    saved = await client.call_tool("workspace_save_artifact", {"path": "out/q.png"})
    listed = [str(resource.uri) for resource in (await client.list_resources()).resources]
    ref = saved.structured_content["ref"]
    artifact = (await client.read_resource(ref)).contents[0]
    return {
        "wrote": wrote,
        "image": [image.type, image.mime_type, base64.b64decode(image.data) == PNG],
        "other": other["content"]["ref"],
        "ref": ref,
        "blocks": sorted({block.type for block in saved.content}),
        "artifact": base64.b64decode(artifact.blob) == PNG,
        "note": saved.content[-1].text,
        "listed": [uri for uri in listed if not uri.startswith("skill://")],
    }


async def resources(client):
    saw = {"uris": []}
    cursor = None
    while True:
        page = await client.list_resources(cursor=cursor)
        saw["uris"] += [str(resource.uri) for resource in page.resources]
        cursor = page.next_cursor
        if not cursor:
            break
    text = (await client.read_resource("skill://csv-report/SKILL.md")).contents[0]
    saw["text"] = text.text
    binary = next(uri for uri in saw["uris"] if uri.endswith(".png"))
    blob = (await client.read_resource(binary)).contents[0]
    saw["binary"] = base64.b64decode(blob.blob)[:4].hex()
    try:
        await client.read_resource("skill://csv-report/no/such.md")
        saw["missing"] = None
    except Exception as error:  # Whatever class the client gives it.
        saw["missing"] = str(error)
    return saw


def refused(url):
    """Status for a request that a page of another site makes."""
    request = urllib.request.Request(
        url,
        data=b"{}",
        headers={
            "Origin": "http://evil.example",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        },
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


async def main():
    if sys.argv[1] == "family":
        name, skillctl, endpoint, options = sys.argv[2:]
        arguments = ["--endpoint", endpoint, "mcp", "--family", name, "--options", options]
        server = StdioServerParameters(command=skillctl, args=arguments)
        async with Client(server, read_timeout_seconds=240) as client:
            print(json.dumps(await family(client, name)))
        return
    if sys.argv[1] == "stdio":
        skillctl, endpoint = sys.argv[2:]
        server = StdioServerParameters(command=skillctl, args=["--endpoint", endpoint, "mcp"])
        saw = {}
    else:
        server = sys.argv[2]
        saw = {"other_origin": refused(server)}
    log = io.StringIO()
    logging.basicConfig(stream=log, level=logging.WARNING)
    async with Client(server, read_timeout_seconds=240) as client:
        saw.update(await call_every_tool(client))
    saw["log"] = log.getvalue()
    print(json.dumps(saw))


asyncio.run(main())
