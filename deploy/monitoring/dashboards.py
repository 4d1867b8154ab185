#!/usr/bin/env python3
"""Writes dashboards/*.json, the Grafana dashboards of Weir, from the panels below.

    deploy/monitoring/dashboards.py            writes the files
    deploy/monitoring/dashboards.py --check    lists the files that are not up to date; exit code 1

A query is PromQL. `{pods}` is replaced by the pods that the variables of the dashboard choose, and
`{pods,code="OK"}` by these pods and a label. Every panel has a description that ends with its good
values. Only Python's standard library is needed.
"""

import json
import pathlib
import sys

# No folder of compiled files next to the dashboards.
sys.dont_write_bytecode = True

from grafana import (
    GREEN,
    PODS,
    RED,
    SOURCE,
    YELLOW,
    dashboard,
    graph,
    quantiles,
    states,
    stat,
    table,
    variable,
)

FOLDER = pathlib.Path(__file__).parent / "dashboards"

# The job has no `.*`: the process metrics of other programs have the same names as Weir's.
VARIABLES = [
    SOURCE,
    variable("job", "Job", "label_values(weir_build_info, job)", all_value=None),
    variable("namespace", "Namespace", 'label_values(weir_build_info{job=~"$job"}, namespace)'),
    variable(
        "pod", "Pod", 'label_values(weir_build_info{job=~"$job",namespace=~"$namespace"}, pod)'
    ),
]
DOMAIN = variable(
    "domain", "Domain", f"label_values(weir_free_descriptors_total{{{PODS}}}, domain)"
)
LIMIT = variable(
    "limit", "Limit", f'label_values(weir_decisions_total{{{PODS},domain=~"$domain"}}, limit)'
)
REDIS = variable("redis", "Redis", f"label_values(weir_redis_up{{{PODS}}}, redis)")
SERVER = variable(
    "server", "Server", f'label_values(weir_redis_up{{{PODS},redis=~"$redis"}}, server)'
)


def decided_by_failure_policies():
    """Checks that the store did not decide."""
    return graph(
        "Decided by failure policies",
        "ops",
        "Checks that Redis did not answer in time, by the policy that answered them.",
        "0. With error and allow limits are not enforced; with local each replica"
        " enforces its share; with deny all is refused.",
        ("{{policy}}", "sum by (policy) (rate(weir_outage_answers_total{pods}{rate}))"),
    )


def without_a_limit():
    """Descriptors and requests that no limit applies to."""
    return graph(
        "Without a limit",
        "ops",
        "Descriptors that no limit matched, and requests for domains that no file"
        " declares: they pass.",
        "no unknown domain; free descriptors where Envoy sends more than the files"
        " limit.",
        (
            "free descriptors of {{domain}}",
            'sum by (domain)'
            ' (rate(weir_free_descriptors_total{pods,domain=~"$domain"}{rate}))',
        ),
        (
            "unknown domain {{domain}}",
            "sum by (domain) (rate(weir_domain_not_found_total{pods}{rate})) > 0",
        ),
    )


def overview():
    return dashboard(
        "Overview",
        "Whether Weir answers, in time, and what its answers are.",
        [*VARIABLES, DOMAIN],
        (
            "Now",
            [
                stat(
                    "Replicas",
                    "none",
                    "Weirs that Prometheus scrapes.",
                    "as many as you run.",
                    "count(weir_build_info{pods})",
                    steps=[],
                ),
                stat(
                    "Alerts",
                    "none",
                    "Alerts of alerts.yaml that fire in the chosen namespaces. Each has a section"
                    " in the runbooks.",
                    "0.",
                    'count(ALERTS{alertname=~"Weir.+",alertstate="firing",'
                    'namespace=~"$namespace"}) or vector(0)',
                    steps=[(1, RED)],
                ),
                stat(
                    "Requests",
                    "reqps",
                    "Calls of Envoy that were answered.",
                    "what you are used to at this hour.",
                    "sum(rate(weir_requests_total{pods}{rate}))",
                ),
                stat(
                    "Over limit",
                    "percentunit",
                    "The share of the checks of the chosen domains that a limit refused.",
                    "what your limits are meant for; a jump is a client, an attack, or a limit"
                    " that became too small.",
                    'sum(rate(weir_decisions_total{pods,domain=~"$domain",'
                    'outcome="over_limit"}{rate}))'
                    ' / sum(rate(weir_decisions_total{pods,domain=~"$domain"}{rate}))',
                    decimals=1,
                ),
                stat(
                    "Errors",
                    "percentunit",
                    "The share of calls that were answered with an error, or refused under"
                    " overload. Envoy lets their requests pass without limits, unless"
                    " failure_mode_deny is set.",
                    "0 %.",
                    '((sum(rate(weir_requests_total{pods,code!="OK"}{rate})) or vector(0)) +'
                    ' sum(rate(weir_calls_refused_total{pods}{rate})))'
                    ' / (sum(rate(weir_requests_total{pods}{rate})) +'
                    ' sum(rate(weir_calls_refused_total{pods}{rate})))',
                    steps=[(0.0001, YELLOW), (0.001, RED)],
                    decimals=2,
                ),
                stat(
                    "Response time, p99",
                    "s",
                    "One call in a hundred takes longer, from its arrival in Weir to its answer."
                    " The delay of a leaky_bucket is included.",
                    "below 5 ms, and far below the timeout of Envoy's filter (20 ms by default).",
                    "histogram_quantile(0.99, sum by (le)"
                    " (rate(ratelimit_service_response_time_seconds_bucket{pods}{rate})))",
                    steps=[(0.005, YELLOW), (0.015, RED)],
                ),
            ],
        ),
        (
            "Traffic",
            [
                graph(
                    "Requests by gRPC code",
                    "reqps",
                    "Calls that were answered. OK includes those that are over a limit; all other"
                    " codes are errors to Envoy.",
                    "OK only.",
                    ("{{code}}", "sum by (code) (rate(weir_requests_total{pods}{rate}))"),
                    (
                        "refused under overload",
                        "sum(rate(weir_calls_refused_total{pods}{rate})) > 0",
                    ),
                    stack=True,
                ),
                graph(
                    "Decisions",
                    "ops",
                    "Checks of the chosen domains by outcome. A request has as many as its"
                    " descriptors match limits.",
                    "ok and over_limit; error, outage_allowed and outage_denied are checks that"
                    " the store did not decide.",
                    (
                        "{{outcome}}",
                        'sum by (outcome)'
                        ' (rate(weir_decisions_total{pods,domain=~"$domain"}{rate})) > 0',
                    ),
                    stack=True,
                ),
                graph(
                    "Response time",
                    "s",
                    "From the arrival of a call in Weir to its answer. The delay of a leaky_bucket"
                    " is included.",
                    "p99 below 5 ms; with counters in memory below 1 ms.",
                    *quantiles("ratelimit_service_response_time_seconds", "{pods}"),
                    steps=[(0.02, RED)],
                ),
                graph(
                    "Over limit by domain",
                    "ops",
                    "Checks that a limit refused.",
                    "what your limits are meant for.",
                    (
                        "{{domain}}",
                        'sum by (domain) (rate(weir_decisions_total{pods,domain=~"$domain",'
                        'outcome="over_limit"}{rate}))',
                    ),
                ),
                without_a_limit(),
                decided_by_failure_policies(),
            ],
        ),
        (
            "Load",
            [
                graph(
                    "Busiest worker",
                    "percentunit",
                    "The part of a core that the busiest worker thread of each pod uses.",
                    "below 70 %, so that a lost pod does not overload the others; at 100 % calls"
                    " are refused.",
                    ("{{pod}}", "max by (pod) (rate(weir_worker_busy_seconds_total{pods}{rate}))"),
                    steps=[(0.7, YELLOW), (0.85, RED)],
                    most=1,
                ),
                graph(
                    "Refused under overload",
                    "short",
                    "Calls that got RESOURCE_EXHAUSTED per second, and connections that are read"
                    " last because a worker cannot keep up.",
                    "0.",
                    (
                        "calls per second, {{pod}}",
                        "sum by (pod) (rate(weir_calls_refused_total{pods}{rate}))",
                    ),
                    ("connections behind, {{pod}}", "sum by (pod) (weir_connections_behind{pods})"),
                ),
                graph(
                    "Memory",
                    "bytes",
                    "Memory of each process that is in RAM.",
                    "flat. With counters in memory it grows with the keys, up to MEMORY_MAX_KEYS.",
                    ("{{pod}}", "sum by (pod) (process_resident_memory_bytes{pods})"),
                ),
            ],
        ),
        (
            "Configuration",
            [
                states(
                    "Last load of the limits",
                    "Whether the files of limits were accepted when they changed last.",
                    "loaded. After a refused load the limits before it stay in force, but a pod"
                    " that starts now does not become ready.",
                    "{{namespace}} {{pod}}",
                    "weir_config_last_load_successful{pods}",
                    [(1, "loaded", GREEN), (0, "refused", RED)],
                ),
                table(
                    "Versions",
                    "What runs, and since when its limits are in force.",
                    "one version; the same number of limits in all pods once a change has reached"
                    " them.",
                    [
                        ("namespace", "Namespace"),
                        ("pod", "Pod"),
                        ("version", "Version"),
                        ("commit", "Commit"),
                        ("Value #B", "Limits"),
                        ("Value #C", "In force since"),
                    ],
                    "sum by (namespace, pod, version, commit) (weir_build_info{pods})",
                    "sum by (namespace, pod) (weir_config_limits{pods})",
                    "sum by (namespace, pod) (weir_config_loaded_timestamp_seconds{pods}) * 1000",
                    hidden=["Value #A"],
                    height=6,
                    units=[("In force since", "dateTimeFromNow")],
                ),
            ],
        ),
    )


def limits():
    chosen = '{pods,domain=~"$domain",limit=~"$limit"}'
    of = lambda outcome: '{pods,domain=~"$domain",limit=~"$limit",outcome="%s"}' % outcome
    of_each = lambda selector: (
        f"sum by (domain, limit, name) (rate(weir_decisions_total{selector}{{rate}}))"
    )
    return dashboard(
        "Limits",
        "What each limit decides. A limit is named by the path of its keys and values.",
        [*VARIABLES, DOMAIN, LIMIT],
        (
            "Decisions",
            [
                graph(
                    "Outcomes",
                    "ops",
                    "Checks of the chosen limits, by outcome.",
                    "ok, and over_limit where a limit is meant to refuse; the others are shadow"
                    " mode and outages.",
                    (
                        "{{outcome}}",
                        f"sum by (outcome) (rate(weir_decisions_total{chosen}{{rate}})) > 0",
                    ),
                    stack=True,
                ),
                graph(
                    "Most asked limits",
                    "ops",
                    "The ten limits with the most checks.",
                    "what you are used to.",
                    (
                        "{{domain}} {{limit}}",
                        "topk(10, sum by (domain, limit)"
                        f" (rate(weir_decisions_total{chosen}{{rate}})))",
                    ),
                ),
                graph(
                    "Most refusing limits",
                    "ops",
                    "The ten limits that refuse the most checks.",
                    "limits that protect something; a limit that refuses usual clients is too"
                    " small.",
                    (
                        "{{domain}} {{limit}}",
                        "topk(10, sum by (domain, limit)"
                        f" (rate(weir_decisions_total{of('over_limit')}{{rate}})) > 0)",
                    ),
                ),
                table(
                    "All limits",
                    "Checks per second of each limit, and the share that it refused.",
                    "a share that you can explain.",
                    [
                        ("domain", "Domain"),
                        ("limit", "Limit"),
                        ("name", "Name"),
                        ("Value #A", "Checks per second"),
                        ("Value #B", "Over limit"),
                    ],
                    of_each(chosen),
                    f"{of_each(of('over_limit'))} / {of_each(chosen)}",
                    width=24,
                    height=9,
                    units=[("Checks per second", "ops"), ("Over limit", "percentunit")],
                ),
            ],
        ),
        (
            "Hits",
            [
                graph(
                    "Hits of the chosen domains",
                    "ops",
                    "Hits that requests asked for; those that were within the limit, above the"
                    " near-limit threshold, and beyond the limit.",
                    "near is a small part of within: clients have room.",
                    *[
                        (
                            name,
                            f'sum(rate(ratelimit_service_rate_limit_{metric}'
                            '{pods,domain=~"$domain"}{rate}))',
                        )
                        for name, metric in [
                            ("asked", "total_hits"),
                            ("within", "within_limit"),
                            ("near", "near_limit"),
                            ("over", "over_limit"),
                        ]
                    ],
                ),
                graph(
                    "Nearly used up",
                    "percentunit",
                    "The ten limits with the largest share of allowed hits above the near-limit"
                    " threshold (NEAR_LIMIT_RATIO, 0.8).",
                    "low. A limit that is often nearly used up refuses next.",
                    (
                        "{{domain}} {{key1}} {{key2}}",
                        'topk(10, sum by (domain, key1, key2)'
                        ' (rate(ratelimit_service_rate_limit_near_limit'
                        '{pods,domain=~"$domain"}{rate}))'
                        ' / (sum by (domain, key1, key2)'
                        ' (rate(ratelimit_service_rate_limit_within_limit'
                        '{pods,domain=~"$domain"}{rate})) > 0))',
                    ),
                    most=1,
                ),
                graph(
                    "Given back",
                    "ops",
                    "Hits that requests gave back (is_negative_hits).",
                    "0, unless your services give hits back.",
                    (
                        "{{domain}} {{limit}}",
                        f"sum by (domain, limit) (rate(weir_negative_hits_total{chosen}{{rate}}))"
                        " > 0",
                    ),
                ),
            ],
        ),
        (
            "Support desk",
            [
                graph(
                    "Overrides in force",
                    "none",
                    "What operators have blocked, exempt or raised, by kind.",
                    "few, with an end: `weir overrides` shows who made them, and until when.",
                    ("{{kind}}", "max by (kind) (weir_overrides{pods})"),
                ),
                graph(
                    "Decided by overrides",
                    "ops",
                    "Descriptors that an override blocks or exempts, or whose limit it raises.",
                    "what the overrides are meant for.",
                    (
                        "{{kind}}",
                        "sum by (kind) (rate(weir_override_decisions_total{pods}{rate})) > 0",
                    ),
                ),
                graph(
                    "Budgets above 80 %",
                    "none",
                    "Hits of the last hour that came after 80 % of a budget (NEAR_LIMIT_RATIO), or"
                    " after all of it. Budgets are the limits whose first level has"
                    " `budget` in its name, as for the alert WeirBudgetNearlyUsed.",
                    "nothing before the end of a period.",
                    (
                        "{{domain}} {{key1}} {{key2}}",
                        " + ".join(
                            'sum by (domain, key1, key2)'
                            f' (increase(ratelimit_service_rate_limit_{metric}_limit'
                            '{pods,domain=~"$domain",key1=~".*budget.*"}[1h]))'
                            for metric in ["near", "over"]
                        ),
                    ),
                ),
            ],
        ),
        (
            "Shadow mode and outages",
            [
                graph(
                    "Shadow mode would refuse",
                    "ops",
                    "Checks that are over a limit in shadow mode. They were allowed.",
                    "what you expect of the limit before you leave shadow mode.",
                    (
                        "{{domain}} {{limit}}",
                        "sum by (domain, limit)"
                        f" (rate(weir_decisions_total{of('shadow_over_limit')}{{rate}})) > 0",
                    ),
                ),
                graph(
                    "Not decided by the store",
                    "ops",
                    "Checks that on_store_failure answered with error, allow or deny, by limit."
                    " Those of local are not here: it counts.",
                    "nothing.",
                    (
                        "{{outcome}} {{domain}} {{limit}}",
                        'sum by (outcome, domain, limit)'
                        ' (rate(weir_decisions_total{pods,domain=~"$domain",limit=~"$limit",'
                        'outcome=~"error|outage_allowed|outage_denied"}{rate})) > 0',
                    ),
                ),
                without_a_limit(),
            ],
        ),
        (
            "Files",
            [
                graph(
                    "Limits in force",
                    "none",
                    "The number of limits in each pod.",
                    "the same in all pods; it changes with a reload only.",
                    ("{{pod}}", "max by (pod) (weir_config_limits{pods})"),
                ),
                graph(
                    "Domains in force",
                    "none",
                    "The number of domains in each pod.",
                    "the same in all pods; it changes with a reload only.",
                    ("{{pod}}", "max by (pod) (weir_config_domains{pods})"),
                ),
                graph(
                    "Loads",
                    "none",
                    "Loads of changed files within five minutes.",
                    "no refused ones.",
                    ("loaded", "sum(increase(ratelimit_service_config_load_success{pods}[5m]))"),
                    ("refused", "sum(increase(ratelimit_service_config_load_error{pods}[5m]))"),
                ),
            ],
        ),
    )


def redis():
    chosen = '{pods,redis=~"$redis",server=~"$server"}'
    server = "{{server}}"
    return dashboard(
        "Redis",
        "How Redis answers, and what Weir does while it does not. A server is named by its"
        " address.",
        [*VARIABLES, REDIS, SERVER],
        (
            "Answers",
            [
                states(
                    "Reachable",
                    "Whether each server answered the last inspection of each pod.",
                    "up.",
                    "{{server}} from {{pod}}",
                    f"weir_redis_up{chosen}",
                    [(1, "up", GREEN), (0, "down", RED)],
                ),
                states(
                    "Circuit breaker",
                    "Closed: requests are sent. Open: the failure policy answers at once. Ramp: a"
                    " growing share of requests is sent.",
                    "closed.",
                    "{{server}} from {{pod}}",
                    f"weir_redis_breaker_state{chosen}",
                    [(0, "closed", GREEN), (1, "open", RED), (2, "ramp", YELLOW)],
                ),
                decided_by_failure_policies(),
                graph(
                    "Errors",
                    "ops",
                    "Errors of Redis by name; the log explains each.",
                    "nothing. timeout, connect and io: Redis or the network fails. queue_full:"
                    " Redis is too slow for this load.",
                    ("{{error}}", "sum by (error) (rate(weir_redis_errors_total{pods}{rate}))"),
                ),
                graph(
                    "Checks without an answer",
                    "ops",
                    "By what is known: not_executed, unknown (it may have counted) or data (the"
                    " key holds something else).",
                    "0.",
                    ("{{kind}}", "sum by (kind) (rate(weir_store_errors_total{pods}{rate}))"),
                ),
            ],
        ),
        (
            "Speed",
            [
                graph(
                    "Time of a batch",
                    "s",
                    "From sending a batch to its last reply, of the batches that were answered in"
                    " time.",
                    "p99 below 2 ms in one zone. Above 10 ms later batches become outages with"
                    " Envoy's timeout of 20 ms.",
                    *quantiles("weir_redis_batch_duration_seconds", chosen, "server"),
                    steps=[(0.01, RED)],
                ),
                graph(
                    "Round trip",
                    "s",
                    "Time of the last inspection of each server, without load.",
                    "below 1 ms in one zone.",
                    (server, f"max by (server) (weir_redis_round_trip_seconds{chosen})"),
                ),
                graph(
                    "Requests in a batch",
                    "none",
                    "How many requests travel together.",
                    "it grows with the load, up to 96. If it is high while batches are slow, Redis"
                    " is at its limit.",
                    (
                        server,
                        f"sum by (server) (rate(weir_redis_batched_requests_total{chosen}{{rate}}))"
                        f" / sum by (server) (rate(weir_redis_batches_total{chosen}{{rate}}))",
                    ),
                ),
                graph(
                    "Requests",
                    "ops",
                    "Requests that each server answered.",
                    "evenly spread in a cluster, unless a few keys are hot.",
                    (
                        server,
                        "sum by (server)"
                        f" (rate(weir_redis_batched_requests_total{chosen}{{rate}}))",
                    ),
                ),
                graph(
                    "Repeated, abandoned, unknown",
                    "ops",
                    "Requests that were sent again because they certainly had not run; that were"
                    " not sent because their callers had left; that may or may"
                    " not have counted.",
                    "0. Some retries while slots of a cluster move.",
                    (
                        "sent again",
                        'sum(rate(weir_redis_retries_total{pods,redis=~"$redis"}{rate}))',
                    ),
                    ("abandoned", f"sum(rate(weir_redis_abandoned_total{chosen}{{rate}}))"),
                    (
                        "unknown",
                        'sum(rate(weir_redis_unknown_outcomes_total{pods,redis=~"$redis"}{rate}))',
                    ),
                ),
                graph(
                    "Connections",
                    "none",
                    "Open connections of all chosen pods.",
                    "one or two for each worker, server and pod. More are opened while batches are"
                    " full or overdue, up to REDIS_POOL_SIZE.",
                    ("main", "sum(ratelimit_redis_pool_cx_active{pods})"),
                    ("per_second", "sum(ratelimit_redis_per_second_pool_cx_active{pods})"),
                ),
            ],
        ),
        (
            "Memory",
            [
                graph(
                    "Memory in use",
                    "percentunit",
                    "The part of maxmemory that the data takes. Servers without maxmemory are not"
                    " shown.",
                    "below 80 %. A full Redis refuses new keys, or evicts counters.",
                    (
                        server,
                        f"max by (server) (weir_redis_used_memory_bytes{chosen}) / (max by"
                        f" (server) (weir_redis_max_memory_bytes{chosen}) > 0)",
                    ),
                    steps=[(0.8, YELLOW), (0.9, RED)],
                    most=1,
                ),
                graph(
                    "Keys",
                    "short",
                    "Keys in the database, also those of other programs.",
                    "it follows the number of clients; keys expire by themselves.",
                    (server, f"max by (server) (weir_redis_keys{chosen})"),
                ),
                graph(
                    "Evicted keys",
                    "ops",
                    "Keys that Redis dropped because it was full. An evicted counter starts again"
                    " at zero.",
                    "0.",
                    (
                        server,
                        f"max by (server) (rate(weir_redis_evicted_keys_total{chosen}{{rate}}))",
                    ),
                ),
            ],
        ),
        (
            "Denial cache and local counters",
            [
                graph(
                    "Refused by the denial cache",
                    "ops",
                    "Checks of keys that are known to be over their limit; Redis is not asked.",
                    "close to the refused checks, which Redis then does not see.",
                    (
                        "refused by the cache",
                        "sum(rate(weir_denial_cache_answers_total{pods}{rate}))",
                    ),
                    (
                        "refused in all",
                        'sum(rate(weir_decisions_total{pods,outcome="over_limit"}{rate}))',
                    ),
                ),
                graph(
                    "Keys in the denial cache",
                    "short",
                    "Keys that are over their limit now.",
                    "as many as there are clients above their limits.",
                    ("{{pod}}", "sum by (pod) (weir_denial_cache_entries{pods})"),
                ),
                graph(
                    "Keys that local counts",
                    "short",
                    "Keys that on_store_failure: local counts in each process during an outage.",
                    "below LOCAL_MAX_KEYS (100,000); none are dropped.",
                    ("{{pod}}", "sum by (pod) (weir_local_keys{pods})"),
                    ("dropped per second", "sum(rate(weir_local_evicted_total{pods}{rate}))"),
                ),
            ],
        ),
        (
            "Servers",
            [
                table(
                    "Diagnostics",
                    "What to improve in the configuration of a server; deploy/redis.md says how.",
                    "empty.",
                    [("redis", "Redis"), ("server", "Server"), ("advice", "Diagnostic")],
                    f"max by (redis, server, advice) (weir_redis_advice{chosen}) > 0",
                    hidden=["Value"],
                ),
                table(
                    "Servers",
                    "Versions, and how far a server's clock is ahead of Weir's.",
                    "one version, 6.2 or newer; clocks within a second.",
                    [
                        ("redis", "Redis"),
                        ("server", "Server"),
                        ("version", "Version"),
                        ("Value #B", "Clock ahead"),
                        ("Value #C", "Breaker opened, last hour"),
                    ],
                    f"max by (redis, server, version) (weir_redis_server_info{chosen})",
                    f"max by (redis, server) (weir_redis_clock_offset_seconds{chosen})",
                    'max by (redis, server) (increase(weir_redis_breaker_transitions_total'
                    '{pods,redis=~"$redis",server=~"$server",to="open"}[1h]))',
                    hidden=["Value #A"],
                    units=[("Clock ahead", "s")],
                ),
            ],
        ),
    )


def workers():
    return dashboard(
        "Workers and overload",
        "Whether Weir's threads keep up, and what a process takes of its machine.",
        VARIABLES,
        (
            "Workers",
            [
                graph(
                    "Busy",
                    "percentunit",
                    "The part of a core that each worker thread uses.",
                    "below 70 %, and similar in all workers: Envoys spread their connections. At"
                    " 100 % calls wait, and then are refused.",
                    (
                        "{{pod}} {{worker}}",
                        "sum by (pod, worker) (rate(weir_worker_busy_seconds_total{pods}{rate}))",
                    ),
                    steps=[(0.7, YELLOW), (0.85, RED)],
                    most=1,
                    width=12,
                ),
                graph(
                    "CPU",
                    "none",
                    "Cores that each process uses, all threads together.",
                    "below the cores that the pod may use. A throttled process misses Envoy's"
                    " deadline.",
                    ("{{pod}}", "sum by (pod) (rate(process_cpu_seconds_total{pods}{rate}))"),
                    width=12,
                ),
                graph(
                    "Calls refused",
                    "ops",
                    "Calls that got RESOURCE_EXHAUSTED: they had waited for too long, or too many"
                    " were waiting or unfinished.",
                    "0.",
                    ("{{pod}}", "sum by (pod) (rate(weir_calls_refused_total{pods}{rate}))"),
                ),
                graph(
                    "Connections behind",
                    "none",
                    "Connections that are read last because their worker cannot keep up.",
                    "0.",
                    ("{{pod}} {{worker}}", "sum by (pod, worker) (weir_connections_behind{pods})"),
                ),
                graph(
                    "Waiting calls",
                    "short",
                    "Calls that wait for Redis or for a leaky_bucket; one with a message of more"
                    " than 4 KiB counts as several.",
                    "below 1,000 with Redis. From 16,384 in a worker on, calls that would have to"
                    " wait are refused.",
                    ("{{pod}} {{worker}}", "sum by (pod, worker) (weir_waiting_calls{pods})"),
                    steps=[(8192, YELLOW), (16384, RED)],
                ),
            ],
        ),
        (
            "Connections",
            [
                graph(
                    "Connections",
                    "none",
                    "Open connections of clients to the gRPC port.",
                    "similar in all pods; Envoys connect again when GRPC_MAX_CONNECTION_AGE has"
                    " passed. At most 10,000.",
                    ("{{pod}}", "sum by (pod) (weir_connections{pods})"),
                    steps=[(10000, RED)],
                ),
                graph(
                    "Connections refused",
                    "ops",
                    "Connections closed because there were too many.",
                    "0.",
                    ("{{pod}}", "sum by (pod) (rate(weir_connections_refused_total{pods}{rate}))"),
                ),
                graph(
                    "Calls reset by HTTP/2",
                    "ops",
                    "Calls that HTTP/2 refused before Weir saw them, by error code. No limit was"
                    " applied to them.",
                    "nothing.",
                    (
                        "{{reason}}",
                        "sum by (reason) (rate(weir_http2_stream_resets_total{pods}{rate}))",
                    ),
                ),
                graph(
                    "Connections ended by HTTP/2",
                    "ops",
                    "Connections that ended with all their calls, by reason.",
                    "nothing.",
                    (
                        "{{reason}}",
                        "sum by (reason) (rate(weir_http2_connection_errors_total{pods}{rate}))",
                    ),
                ),
                graph(
                    "Requests of each pod",
                    "reqps",
                    "Calls that were answered.",
                    "similar in all pods.",
                    (
                        "{{pod}}",
                        "sum by (pod) (rate(ratelimit_service_total_requests{pods}{rate}))",
                    ),
                ),
            ],
        ),
        (
            "TLS of the gRPC port",
            [
                graph(
                    "Handshakes",
                    "ops",
                    "TLS handshakes of clients, by outcome. late: not finished in time; displaced:"
                    " too many were unfinished.",
                    "completed only; nothing without TLS.",
                    (
                        "{{outcome}}",
                        "sum by (outcome) (rate(weir_tls_handshakes_total{pods}{rate}))",
                    ),
                ),
                graph(
                    "Unfinished handshakes",
                    "none",
                    "TLS handshakes that are not finished.",
                    "near 0.",
                    ("{{pod}}", "sum by (pod) (weir_tls_handshakes_open{pods})"),
                ),
                stat(
                    "Certificate expires in",
                    "s",
                    "Time until the first certificate of a gRPC port expires.",
                    "more than a week, or half its lifetime if that is shorter.",
                    "min(weir_certificate_expiry_timestamp_seconds{pods}) - time()",
                    width=8,
                    height=8,
                ),
            ],
        ),
        (
            "Counters in memory",
            [
                graph(
                    "Keys",
                    "short",
                    "Keys in the memory store, where Redis is not used.",
                    "below MEMORY_MAX_KEYS (1,000,000).",
                    ("{{pod}}", "sum by (pod) (weir_memory_keys{pods})"),
                    width=12,
                ),
                graph(
                    "Dropped keys",
                    "ops",
                    "Keys that the memory store dropped because it was full. A dropped key starts"
                    " again at zero.",
                    "0.",
                    ("{{pod}}", "sum by (pod) (rate(weir_memory_evicted_total{pods}{rate}))"),
                    width=12,
                ),
            ],
        ),
        (
            "Process",
            [
                graph(
                    "Memory",
                    "bytes",
                    "Memory in RAM, and address space.",
                    "RAM is flat once the keys are.",
                    ("RAM {{pod}}", "sum by (pod) (process_resident_memory_bytes{pods})"),
                    ("address space {{pod}}", "sum by (pod) (process_virtual_memory_bytes{pods})"),
                ),
                graph(
                    "File descriptors",
                    "none",
                    "Open file descriptors, sockets included, and how many are allowed.",
                    "far below what is allowed.",
                    ("open {{pod}}", "sum by (pod) (process_open_fds{pods})"),
                    ("allowed", "min(process_max_fds{pods})"),
                ),
                graph(
                    "Threads",
                    "none",
                    "Threads of each process.",
                    "constant.",
                    ("{{pod}}", "sum by (pod) (process_threads{pods})"),
                ),
                stat(
                    "Panics",
                    "none",
                    "Panics that were caught, since the start. Each cost a request and is a defect"
                    " of Weir.",
                    "0.",
                    "sum(weir_panics_total{pods})",
                    steps=[(1, RED)],
                    width=6,
                ),
                stat(
                    "Log lines dropped",
                    "none",
                    "Lines that were lost within an hour because stderr was not read in time.",
                    "0.",
                    "sum(increase(weir_log_lines_dropped_total{pods}[1h]))",
                    steps=[(1, YELLOW)],
                    width=6,
                    decimals=0,
                ),
                stat(
                    "Errors of requests",
                    "reqps",
                    "Calls that got an error, of the store or of Weir.",
                    "0.",
                    "sum(rate(ratelimit_service_should_rate_limit_error{pods}{rate}))",
                    steps=[(0.001, RED)],
                    width=6,
                ),
                stat(
                    "Youngest process",
                    "s",
                    "Time since the last start of a process.",
                    "longer than since your last rollout; less means restarts.",
                    "time() - max(process_start_time_seconds{pods})",
                    width=6,
                ),
            ],
        ),
    )


def xds():
    count_of = lambda metric: ("{{result}}", f"sum by (result) (increase({metric}{{pods}}[5m]))")
    # One series of the four has the value 1: each state gets a number.
    state = " or ".join(
        f'weir_xds_state{{pods,state="{name}"}} * {number}'
        for number, name in enumerate(["connecting", "waiting", "synced", "nacked"], 1)
    )
    return dashboard(
        "xDS",
        "Limits from a control plane (CONFIG_TYPE=GRPC_XDS_SOTW). Without one, nothing is shown.",
        VARIABLES,
        (
            "Control plane",
            [
                states(
                    "Connected",
                    "Whether a stream to the control plane is open.",
                    "connected. While it is not, the last good limits stay in force, but changes"
                    " do not arrive.",
                    "{{namespace}} {{pod}}",
                    "weir_xds_connected{pods}",
                    [(1, "connected", GREEN), (0, "not connected", RED)],
                ),
                states(
                    "State",
                    "Waiting: nothing was received yet. Nacked: the last response was refused, in"
                    " whole or in part.",
                    "synced.",
                    "{{namespace}} {{pod}}",
                    f"sum by (namespace, pod) ({state})",
                    [
                        (1, "connecting", YELLOW),
                        (2, "waiting", YELLOW),
                        (3, "synced", GREEN),
                        (4, "nacked", RED),
                    ],
                ),
                graph(
                    "Responses",
                    "none",
                    "Responses of the control plane within five minutes, by what became of them.",
                    "accepted when limits change; none in between. other_type holds no limits: the"
                    " control plane answers another question.",
                    count_of("weir_xds_responses_total"),
                ),
                graph(
                    "Attempts to connect",
                    "none",
                    "Within five minutes, by result.",
                    "none, or opened after an upgrade of the control plane.",
                    count_of("weir_xds_connects_total"),
                ),
                graph(
                    "Refused domains",
                    "none",
                    "Domains that have a mistake, by what is in force instead: kept (their last"
                    " good limits) or absent (nothing, so that their requests pass).",
                    "0.",
                    ("{{limits}}", "max by (limits) (weir_xds_refused_domains{pods})"),
                ),
            ],
        ),
        (
            "Limits",
            [
                graph(
                    "Age of the limits",
                    "s",
                    "Time since a response was last accepted as a whole. Not shown before the"
                    " first.",
                    "the same in all pods. It may be high: a control plane sends nothing while"
                    " nothing changes.",
                    (
                        "{{pod}}",
                        "time() - max by (pod) (weir_xds_accepted_timestamp_seconds{pods} > 0)",
                    ),
                ),
                graph(
                    "Limits in force",
                    "none",
                    "The number of limits in each pod.",
                    "the same in all pods; it changes with a response only.",
                    ("{{pod}}", "max by (pod) (weir_config_limits{pods})"),
                ),
                graph(
                    "Cache file",
                    "none",
                    "Attempts to write CONFIG_GRPC_XDS_CACHE_FILE within five minutes, by result.",
                    "no failed ones: a process that starts while the control plane is away has no"
                    " limits without the file.",
                    count_of("weir_xds_cache_writes_total"),
                ),
                table(
                    "Versions",
                    "The version of the last response that was accepted as a whole, and when the"
                    " last one was accepted and refused.",
                    "one version in all pods; refused before accepted, or never.",
                    [
                        ("namespace", "Namespace"),
                        ("pod", "Pod"),
                        ("version", "Version"),
                        ("Value #B", "Accepted"),
                        ("Value #C", "Refused"),
                    ],
                    "sum by (namespace, pod, version) (weir_xds_accepted_info{pods})",
                    "max by (namespace, pod) (weir_xds_accepted_timestamp_seconds{pods} > 0) *"
                    " 1000",
                    "max by (namespace, pod) (weir_xds_refused_timestamp_seconds{pods} > 0) * 1000",
                    hidden=["Value #A"],
                    width=24,
                    units=[("Accepted", "dateTimeFromNow"), ("Refused", "dateTimeFromNow")],
                ),
            ],
        ),
    )


DASHBOARDS = {
    "overview": overview,
    "limits": limits,
    "redis": redis,
    "workers": workers,
    "xds": xds,
}


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    written = {
        FOLDER / f"{name}.json": json.dumps(make(), indent=1, ensure_ascii=False) + "\n"
        for name, make in DASHBOARDS.items()
    }
    if not arguments:
        FOLDER.mkdir(exist_ok=True)
        for path, text in written.items():
            path.write_text(text)
        return
    present = set(FOLDER.glob("*.json"))
    wrong = [
        path for path, text in written.items() if path not in present or path.read_text() != text
    ] + sorted(present - set(written))
    if wrong:
        sys.exit(
            "not up to date, run deploy/monitoring/dashboards.py: "
            + ", ".join(path.name for path in wrong)
        )


main(sys.argv[1:])
