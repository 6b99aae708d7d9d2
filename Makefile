# One command for each thing that is done often; `make` lists them.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# Nodes of the embedded site. Empty: as many as last time, at first two.
NODES ?=
# The demo is for the embedded site, whatever site a shell has chosen.
DEMO = env -u ANSIBLE_INVENTORY
TRAIN = ansible-playbook playbooks/train.yml -e config=ppyoloe.yml

.DEFAULT_GOAL := help
.PHONY: help setup dev engine demo demo-down bench start-faults corpus mutants noise simulate drill goodput lies hostile platforms long lint messages reference test collection release

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with what the controller needs; nothing to do, nothing done
	@.config/setup.sh

dev: # what tests and linters need besides
	@.config/setup.sh dev

engine: # what only root can mend is said before anything starts
	@docker info > /dev/null 2>&1 || [ "$$(id -u)" -eq 0 ] || { \
	  echo 'no Docker engine answers and you are not root. Remedy: start Docker and join its group, or run this as root' >&2; exit 1; }

demo: engine setup ## Docker nodes on this machine (NODES=2) and one training on all of them
	@TRAINYARD_LOCAL_NODES=$(NODES) $(DEMO) ansible-playbook playbooks/local.yml
	@$(DEMO) ansible-playbook playbooks/provision.yml -e suite=paddledetection
	@printf '\n$$ %s\n' '$(TRAIN)'
	@$(DEMO) $(TRAIN)
	@printf '\nNext: . .venv/bin/activate; trainyard logs; trainyard why. The report opens in a browser. make demo-down removes the nodes.\n'

bench: engine dev ## the product beside other tools, on eight nodes with limited links and on molecule's two; as root; writes docs/benchmarks.md (some hours)
	@python tests/bench/benchmarks.py --write
	@ansible-playbook -i molecule/inventory playbooks/local.yml
	@ansible-playbook -i molecule/inventory playbooks/provision.yml -e suite=paddledetection
	@python tests/bench/start_times.py --write
	@python tests/bench/launch_settings.py --write

start-faults: engine dev # start faults on molecule's two nodes: bare Paddle beside check.yml; prints the table of docs/faults.md
	@ansible-playbook -i molecule/inventory playbooks/local.yml
	@ansible-playbook -i molecule/inventory playbooks/provision.yml -e suite=paddledetection
	@ansible-playbook -i molecule/inventory playbooks/sync.yml -e config=molecule/shared/jobs/short.yml
	@python tests/bench/bare_faults.py -i molecule/inventory

corpus: engine dev ## provoke the real failures of tests/corpus that it lacks, on molecule's two nodes with all four suites
	@ansible-playbook -i molecule/inventory playbooks/local.yml
	@for suite in paddledetection paddleocr paddleseg mindocr; do \
	  ansible-playbook -i molecule/inventory playbooks/provision.yml -e suite=$$suite || exit 1; done
	@python tests/corpus/provoke.py -i molecule/inventory

mutants: dev ## remove or invert each rule of the verdict, one at a time: how many of them make a test fail (20 to 60 minutes)
	@python tests/bench/verdict_mutants.py

noise: dev ## every case of tests/corpus with every kind of handled error at every place (half an hour)
	@TRAINYARD_NOISE=all pytest -q -s -p no:cacheprovider tests/system/test_corpus_noise.py

simulate: dev ## play schedules of faults against the protocol of the supervisors, 20,000 or SCHEDULES=N, and against each of its guards left out (half an hour on two cores)
	@python tests/bench/simulate.py --schedules $(or $(SCHEDULES),20000)

drill: engine dev ## every fault of playbooks/drill.yml on molecule's two nodes, bare Paddle beside it, and log stress; writes docs/drills.md (2 hours)
	@ansible-playbook -i molecule/inventory playbooks/local.yml
	@for suite in paddledetection mindocr; do ansible-playbook -i molecule/inventory playbooks/provision.yml -e suite=$$suite || exit 1; done
	@ansible-playbook -i molecule/inventory playbooks/drill.yml -e confirm=molecule; code=$$?; \
	  python tests/bench/bare_drill.py -i molecule/inventory --out runs/drill/bare && \
	  python tests/bench/log_stress.py -i molecule/inventory --folder runs/drill/logs --gigabytes 10 --json runs/drill/logs.json && \
	  python tests/bench/drill_page.py --bare runs/drill/bare/bare.json --logs runs/drill/logs.json && exit $$code

goodput: engine dev ## one training under a schedule of faults, beside bare Paddle and mpirun that a script restarts, without and with a slow link; writes docs/drills.md (1.5 hours)
	@ansible-playbook -i molecule/inventory playbooks/local.yml
	@ansible-playbook -i molecule/inventory playbooks/provision.yml -e suite=paddledetection
	@python tests/bench/goodput.py --out runs/goodput --seed 81 --rounds 3 --epochs 32 --every 2 --pin
	@python tests/bench/goodput.py --out runs/goodput-link --seed 91 --rounds 3 --epochs 28 --every 2 --pin --link 400 --batch 1
	@python tests/bench/drill_page.py --drill '' --goodput runs/goodput/goodput.json --linked runs/goodput-link/goodput.json

demo-down: setup ## remove the demo's nodes; runs and caches stay
	@$(DEMO) ansible-playbook playbooks/local_down.yml

lies: dev ## more lies of pretended nodes than CI tells: TRAINYARD_LIES=60 a verb, over every verb (half an hour)
	@TRAINYARD_LIES=$${TRAINYARD_LIES:-60} pytest -q -s -p no:cacheprovider tests/system/lying

hostile: engine dev ## day one on a site with a jump host, firewall and shared home, on nodes of its own (6 minutes)
	@.config/test.sh hostile

platforms: engine dev ## trainings on nodes of Debian 11 and 13, one mesh with 12, Ubuntu if its keyring is there (15 to 25 minutes)
	@.config/test.sh platforms

long: engine dev ## scenarios that CI leaves out: endings that take minutes, two faults of the drill, the transfer of logs (25 minutes)
	@.config/test.sh long

lint: dev ## static checks: YAML, Ansible, Python, configuration
	@.config/test.sh lint

messages: ## write docs/messages.md, the page of all message codes
	@PYTHONPATH=collections python -m ansible_collections.trainyard.cluster.plugins.plugin_utils.report.message_catalogue docs/messages.md

reference: ## write docs/reference/, the pages of all keys and options
	@PYTHONPATH=collections python -m ansible_collections.trainyard.cluster.plugins.plugin_utils.config.reference_pages docs/reference

test: engine dev ## everything that CI runs, in one go: all but `make hostile`, `make platforms`, `make long`, `make drill` and the rest of `make lies`
	@.config/test.sh

collection: setup ## build the collection trainyard.cluster into dist/
	@python .config/collection.py

release: dev ## build a release into dist/: collection, wheel, notes and sums (docs/releasing.md)
	@python .config/release.py
