"""
The asyncio shells that every process shares: remoting server and client, HTTP, logs, the main loop.

Rule: nothing here decides anything about messages; bytes become commands and commands bytes, within
limits. Imports `orderlymq_protocol` and nothing else of the project. Start reading at `remoting.connection`;
`settingsfile`, the file that a process is started with, knows the other rooms.
"""
