"""The process from which `forks` forks: it has imported everything and built the parser of SQL filters."""

import orderlymq_broker.__main__
import orderlymq_nameserver.__main__
from orderlymq_broker.processors.fetch.sql import compile_sql

MAINS = {
    "orderlymq_broker": orderlymq_broker.__main__.main,
    "orderlymq_nameserver": orderlymq_nameserver.__main__.main,
}
compile_sql("a IS NULL")
