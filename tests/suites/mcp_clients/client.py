"""Goes through all tools of `bgctl mcp` by the public library for Python, and says which revision was negotiated.

The library checks every structured content against the schema that the tool declares.
"""

import asyncio
import faulthandler
import os
import sys

from mcp import Client, StdioServerParameters, stdio_client


async def main(bgctl: str, mode: str) -> None:
    server = StdioServerParameters(command=bgctl, args=["mcp", "--structured"], env=dict(os.environ))
    async with Client(stdio_client(server), mode=mode) as client:
        print(client.protocol_version)
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert len(tools) == 7, tools
        assert tools["background_list"].annotations.read_only_hint
        assert tools["background_cancel"].annotations.destructive_hint

        async def call(name, progress=None, **arguments):
            result = await client.call_tool(name, arguments, progress_callback=progress)
            print(f">>> {name} {arguments}\n{result.content[0].text}\n")
            return result

        async def done(name, progress=None, **arguments):
            result = await call(name, progress, **arguments)
            assert not result.is_error, result
            return result.structured_content

        os.mkfifo("gate")
        started = await done("background_command", command="echo hello; read word < gate; echo $word")
        task = started["task"]["task_id"]
        looked = await done("background_output", task_id=task)
        assert looked["task"]["status"] in ("pending", "running"), looked

        # The wait is told of as it goes on, and ends when the task does.
        steps = []

        async def progress(value, total, message):
            steps.append(value)
            if len(steps) == 1:
                await asyncio.to_thread(lambda: open("gate", "w").write("bye\n"))

        other = (await done("background_command", command="exit 3"))["task"]["task_id"]
        waited = await done("background_block", progress, task_ids=[task, other], timeout=60000)
        assert not waited["timed_out"] and len(waited["finished"]) == 2, waited
        assert [one["status"] for one in waited["tasks"]] == ["completed", "failed"], waited
        assert waited["tasks"][0]["result"] == "hello\nbye", waited
        assert steps == sorted(steps) and steps, steps

        long = (await done("background_command", command="sleep 1000", description="long"))["task"]["task_id"]
        cancelled = await done("background_cancel", task_id=long)
        assert cancelled["tasks"][0]["status"] == "cancelled", cancelled
        listed = await done("background_list")
        assert listed["summary"]["cancelled"] == 1 and len(listed["tasks"]) == 3, listed
        cleared = await done("background_clear")
        assert cleared["cleared"] == 3, cleared

        refused = await call("background_task", prompt="x")
        assert refused.is_error and '"agent"' in refused.content[0].text, refused
        refused = await call("background_output", task_id="3f2a91bc")
        assert refused.is_error, refused


# If it hangs it says where.
faulthandler.dump_traceback_later(180, exit=True)
asyncio.run(main(*sys.argv[1:]))
