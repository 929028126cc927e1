# Everything runs in .venv of this folder; nothing else on the machine is changed, except that Kafka's
# jars are kept in the user's cache folder and, as root on Debian or Ubuntu, a missing Java is
# installed. `make PYTHON=/path/to/python3.12` chooses the Python of a new .venv.

PYTHON ?=
JOBS ?= 3
FAST_JOBS ?= 6
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
REWRITTEN := $(VENV)/.rewritten

# Spark starts workers as `python3` of the PATH unless told, and that one lacks this package.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Spark starts Python by the hundreds: each would compile our modules for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-fast soak soak-long compat kerberos lint docs docs-serve bench bench-quick broker clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(STAMP) ## one real broker, 1,000,000 rows written and read back by Spark, the broker removed again
	@$(PY) -m tests.tools.demo

# Tests run in JOBS processes: three keep two cores busy, as many tests wait (those of test-fast wait most;
# each process collects all tests, in six seconds).
# Deadlines get short with more, and a Spark that gets too small a share of a core gives its Python workers
# up. With an older Spark, in a virtual environment of its own:
#     pip install -e '.[dev]' && pip install 'pyspark[connect]==4.0.5'
#     python -m pytest -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning \
#       tests/spark/stream/test_streams.py
# (PySpark 4.0 and 4.1 leave sockets of their own to the garbage collector.)
test: $(REWRITTEN) ## all tests, those with real brokers and Spark included, a quarter of an hour
	@$(PY) -m sparkkafka.testing.kafka.jars connector avro registry
	@$(PY) -m tests.support.quick_spark
	@$(PY) -m pytest --rerun-show-tracebacks -m "not bench and not soak and not soak_long and not compat and not kerberos" -n $(JOBS)

FAST := not real and not spark and not notebook and not slow and not bench and not soak and not soak_long and not compat
test-fast: $(REWRITTEN) ## the tests without broker and Spark but the slowest of them, a minute and a half
	@$(PY) -m pytest -m "$(FAST)" --ignore tests/real -n $(FAST_JOBS)

soak: $(STAMP) ## the long forms of tests, an hour: killed drivers and brokers, 2,000 micro-batches, properties
	@$(PY) -m pytest -m soak -s
	@SPARKKAFKA_LONG=1 $(PY) -m pytest -m "hypothesis and not real and not spark" --ignore tests/real -n $(JOBS)

soak-long: $(STAMP) ## one hour on three brokers under all faults at once (SPARKKAFKA_SOAK_MINUTES=60)
	@$(PY) -m pytest -m soak_long -s

compat: $(STAMP) ## six Kafkas, kfake (needs Go), Tansu and four Sparks, a quarter of an hour; renews docs/compatibility.md
	@$(PY) -m tests.tools.compat

kerberos: $(STAMP) ## GSSAPI with a real KDC; needs krb5-kdc, krb5-admin-server, krb5-user, libkrb5-dev and gcc
	@$(PY) -m tests.tools.kerberos

lint: $(STAMP) ## ruff and mypy
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy

# Strictly: what leads nowhere fails. The notebooks have the outputs that are committed.
docs: $(STAMP) ## the docs as a site, in site/index.html
	@$(PY) -m tests.tools.docs_site

docs-serve: docs ## the site at http://localhost:8000 until Ctrl-C (PORT=8000)
	@$(PY) -m http.server --bind 127.0.0.1 --directory site $(or $(PORT),8000)

# Each part leaves docs/benchmarks/PART.json; pages and pictures are made of all of them.
BENCH ?= spark schemas decoders growth client
bench: $(STAMP) ## us beside the rivals, half an hour (BENCH="schemas growth": parts); renews docs/benchmarks*
	@$(PY) -m pip install --quiet -r tests/bench/requirements.txt
	@$(PY) -m sparkkafka.testing.kafka.jars connector avro registry
	@failed=; for part in $(BENCH); do $(PY) tests/bench/run.py $$part --write || failed="$$failed $$part"; done; \
	if [ -n "$$failed" ]; then echo "not renewed:$$failed" >&2; exit 1; fi
	@$(PY) tests/bench/verify.py docs/benchmarks/*.json

bench-quick: $(STAMP) ## a part of it in three minutes; changes no file
	@$(PY) -m sparkkafka.testing.kafka.jars connector avro registry
	@$(PY) tests/bench/run.py spark --quick
	@$(PY) tests/bench/run.py client --quick

broker: $(STAMP) ## one real broker until Ctrl-C, to try things (PORT=9092)
	@$(PY) -m sparkkafka.testing.kafka.broker --properties conf/broker.properties --topics "" $(if $(PORT),--port $(PORT))

clean: ## back to a fresh clone (Kafka's jars stay in the user's cache folder)
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  spark-warehouse metastore_db derby.log artifacts site docs/notebooks .cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pytest rewrites the asserts of 400 files. In a fresh clone each of its processes would do it for all.
$(REWRITTEN): $(STAMP)
	@$(PY) -m pytest --collect-only -qq >/dev/null 2>&1; touch $(REWRITTEN)

# The stamp is younger than pyproject.toml only after a whole installation.
$(STAMP): pyproject.toml
	@python=; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3 python3.11 python3.12 python3.13 python3.14); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	  then python="$$candidate"; break; fi; done; \
	if [ -z "$$python" ]; then \
	  echo "Python 3.11 or newer is needed and was not found$(if $(PYTHON), at $(PYTHON)): install it, or run make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; fi; \
	echo "installing the pinned tools into $(VENV) with $$($$python --version), once: two minutes or more, by the network"; \
	if ! { [ -x $(PY) ] && $(PY) -m pip --version >/dev/null 2>&1; } && ! "$$python" -m venv $(VENV); then \
	  echo "$$python cannot make a virtual environment (on Debian and Ubuntu: apt-get install python3-venv)" >&2; \
	  exit 1; fi; \
	rm -f $(VENV)/.failed; \
	{ $(PY) -m pip install -e '.[dev]' >$(VENV)/install.log 2>&1 || touch $(VENV)/.failed; } & \
	seconds=0; while kill -0 $$! 2>/dev/null; do sleep 1; seconds=$$((seconds + 1)); \
	  step=$$(grep -oE '(Collecting|Downloading) [^ ]+|Installing collected packages' $(VENV)/install.log | tail -n 1); \
	  if [ -t 1 ]; then printf '\r\033[K  %s s  %.60s' "$$seconds" "$$step"; \
	  elif [ $$((seconds % 15)) -eq 0 ]; then echo "  $$seconds s  $$step"; fi; done; \
	if [ -t 1 ]; then printf '\r\033[K'; fi; \
	if [ -e $(VENV)/.failed ]; then cat $(VENV)/install.log >&2; \
	  echo "the installation failed, see above: check the network or pip's settings, then run make again" >&2; \
	  exit 1; fi; \
	echo "installed in $$seconds s"; \
	touch $(STAMP)
