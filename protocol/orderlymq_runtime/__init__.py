"""
The asyncio shells that every process shares: remoting server and client, HTTP, logs, the main loop.

Rule: nothing here decides anything about messages; it turns bytes into commands and commands into bytes, within
limits. It imports `orderlymq_protocol` and nothing else of the project. Start reading at `remoting.connection`;
`settingsfile`, the file that a process is started with, imports the other folders.
"""
