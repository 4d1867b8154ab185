"""Values of the chart in deploy/helm/weir: values to render, and values that it has to reject."""

SHOP = (
    "domain: shop\ndescriptors:\n  - key: user\n"
    "    rate_limit: { name: per-user, unit: hour, requests_per_unit: 3 }\n"
)
SECOND = (
    "domain: second\ndescriptors:\n  - key: user\n"
    "    rate_limit: { unit: second, requests_per_unit: 1000 }\n"
)

CERT_MANAGER = {"enabled": True, "issuerRef": {"name": "internal", "kind": "ClusterIssuer"}}
PEERS = [
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "envoy"}},
        "podSelector": {"matchLabels": {"app": "envoy"}},
    }
]

MESH = {"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": 15008}]}

# name: values. Each is linted, rendered and validated; `serve.py` runs those that it names.
CASES = {
    "default": {},
    "memory": {
        "redis": {"mode": "none"},
        "replicaCount": 1,
        "limits": {"files": {"shop.yaml": SHOP}},
    },
    "limits": {
        "limits": {"files": {"shop.yaml": SHOP, "second.yaml": SECOND}},
        "fullnameOverride": "limiter",
        "commonLabels": {"team": "edge"},
    },
    "existing-limits": {"limits": {"existingConfigMap": "our-limits"}},
    "single": {
        "limits": {"files": {"shop.yaml": SHOP}},
        "redis": {
            "mode": "external",
            "keyPrefix": "edge_",
            "external": {
                "addresses": ["redis.example:6379"],
                "database": 3,
                "username": "weir",
                "passwordSecret": "redis-login",
                "passwordKey": "pass",
            },
        },
    },
    "single-tls": {
        "limits": {"files": {"shop.yaml": SHOP}},
        "redis": {
            "mode": "external",
            "external": {"addresses": ["redis.example:6380"], "passwordSecret": "redis-login"},
            "tls": {"enabled": True, "caSecret": "redis-ca", "clientSecret": "redis-client"},
        },
    },
    "sentinel": {
        "limits": {"files": {"shop.yaml": SHOP}},
        "redis": {
            "mode": "external",
            "external": {
                "type": "sentinel",
                "addresses": ["sentinel-0.example:26379", "sentinel-1.example:26379"],
                "sentinelMaster": "primary",
                "passwordSecret": "redis-login",
                "sentinelPasswordSecret": "sentinel-login",
                "database": 1,
            },
        },
    },
    "cluster": {
        "limits": {"files": {"shop.yaml": SHOP, "second.yaml": SECOND}},
        "redis": {
            "mode": "external",
            "external": {
                "type": "cluster",
                "addresses": ["cluster-0.example:6379", "cluster-1.example:6379"],
            },
            "perSecond": {
                "enabled": True,
                "addresses": ["second.example:6379"],
                "passwordSecret": "second-login",
            },
        },
    },
    "tls": {
        "redis": {"mode": "none"},
        "limits": {"files": {"shop.yaml": SHOP}},
        "tls": {
            "enabled": True,
            "secretName": "grpc-certificate",
            "clients": {"caSecret": "client-ca", "name": "envoy.example"},
        },
        "test": {
            "domain": "shop",
            "descriptor": ["user=test"],
            "clientSecret": "client-certificate",
        },
    },
    "cert-manager": {
        "tls": {"enabled": True, "certManager": {**CERT_MANAGER, "dnsNames": ["limits.example"]}},
        "metrics": {"serviceMonitor": {"enabled": True}},
    },
    "cert-manager-secret": {
        "tls": {
            "enabled": True,
            "secretName": "written-here",
            "certManager": CERT_MANAGER,
            "clients": {"caSecret": "client-ca"},
        },
        "httpJson": True,
        "headlessService": {"enabled": False},
    },
    "monitoring": {
        "metrics": {
            "serviceMonitor": {
                "enabled": True,
                "namespace": "monitoring",
                "labels": {"release": "stack"},
                "relabelings": [{"action": "labeldrop", "regex": "x"}],
            },
            "prometheusRule": {
                "enabled": True,
                "namespace": "monitoring",
                "labels": {"release": "stack"},
                "alertLabels": {"team": "edge"},
                "disabled": ["WeirAbsent"],
                "runbookUrlPrefix": "https://git.example/weir/blob/v0.1.0/",
            },
            "dashboards": {
                "enabled": True,
                "namespace": "monitoring",
                "annotations": {"grafana_folder": "Weir"},
            },
        }
    },
    "pod-monitor": {
        "metrics": {
            "podMonitor": {
                "enabled": True,
                "interval": "30s",
                "metricRelabelings": [
                    {"action": "drop", "sourceLabels": ["domain"], "regex": "test"}
                ],
            },
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True},
            "reference": {"enabled": True, "port": 19001},
        }
    },
    "autoscaling": {
        "autoscaling": {
            "enabled": True,
            "minReplicas": 3,
            "maxReplicas": 12,
            "podMetrics": [{"name": "weir_worker_busy", "averageValue": "700m"}],
            "metrics": [
                {
                    "type": "ContainerResource",
                    "containerResource": {
                        "name": "cpu",
                        "container": "weir",
                        "target": {"type": "Utilization", "averageUtilization": 50},
                    },
                }
            ],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
        },
        "podDisruptionBudget": {"minAvailable": "50%"},
        "topologySpread": {"zones": "DoNotSchedule", "hosts": ""},
    },
    "custom-metric-only": {
        "autoscaling": {
            "enabled": True,
            "targetCPUUtilizationPercentage": None,
            "podMetrics": [{"name": "weir_calls", "averageValue": 20000}],
        },
        "localReplicas": 6,
    },
    "closed": {
        "networkPolicy": {
            "ask": PEERS,
            "scrape": [],
            "administer": [{"podSelector": {"matchLabels": {"role": "operator"}}}],
            "extraIngress": [MESH],
            "egress": {"enabled": True},
        },
        "debug": {"listen": True, "tokenSecret": "desk-tokens", "tokenKey": "people"},
    },
    "closed-to-all": {
        "networkPolicy": {"ask": [], "scrape": [], "administer": []},
        "test": {"enabled": False},
        "debug": {"listen": True},
    },
    "closed-external": {
        "redis": {"mode": "external", "external": {"addresses": ["10.0.0.5:6379"]}},
        "networkPolicy": {
            "egress": {
                "enabled": True,
                "rules": [
                    {"to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}], "ports": [{"port": 6379}]}
                ],
            }
        },
    },
    "open": {
        "networkPolicy": {"enabled": False},
        "debug": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
    },
    "load-balancer": {
        "service": {
            "type": "LoadBalancer",
            "annotations": {"example.com/internal": "true"},
            "externalTrafficPolicy": "Local",
            "loadBalancerClass": "example.com/internal",
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "ipFamilyPolicy": "PreferDualStack",
            "ipFamilies": ["IPv6", "IPv4"],
        },
        "networkPolicy": {"ask": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.9.0.0/16"]}}]},
    },
    # The values of deploy/envoy-ai-gateway/weir.yaml, as deploy/README.md shows them.
    "control-plane": {
        "fullnameOverride": "envoy-ai-gateway-ratelimit",
        "controlPlane": {
            "enabled": True,
            "address": "ai-gateway-controller.envoy-ai-gateway-system:18002",
            "nodeId": "envoy-ai-gateway-ratelimit",
        },
        "redis": {
            "mode": "external",
            "external": {"addresses": ["redis.redis-system.svc.cluster.local:6379"]},
        },
        "service": {"grpcAppProtocol": "kubernetes.io/h2c"},
    },
    "control-plane-tls": {
        "controlPlane": {
            "enabled": True,
            "address": "control.example:18000",
            "nodeId": "edge",
            "cache": {"enabled": False},
            "tls": {
                "enabled": True,
                "caSecret": "control-ca",
                "clientSecret": "control-client",
                "serverName": "spiffe://cluster.local/ns/a/sa/control",
            },
        },
        "redis": {"mode": "none"},
    },
    "everything-of-pods": {
        "image": {
            "repository": "registry.example/weir",
            "digest": "sha256:" + "a" * 64,
            "pullPolicy": "Always",
            "pullSecrets": [{"name": "login"}],
        },
        "serviceAccount": {"create": False, "name": "shared"},
        "podAnnotations": {"a": "b"},
        "podLabels": {"sidecar.istio.io/inject": "true"},
        "nodeSelector": {"kubernetes.io/arch": "arm64"},
        "tolerations": [{"key": "edge", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
                    ]
                }
            }
        },
        "priorityClassName": "system-cluster-critical",
        "terminationGracePeriodSeconds": 80,
        "settings": {
            "DRAIN_DELAY": "1m",
            "MEMORY_MAX_KEYS": 2000000,
            "NEAR_LIMIT_RATIO": 0.75,
            "SHADOW_MODE": True,
            "LOG_FORMAT": None,
            "ON_STORE_FAILURE": "local",
        },
        "extraEnv": [
            {
                "name": "OTEL_EXPORTER_OTLP_HEADERS",
                "valueFrom": {"secretKeyRef": {"name": "collector", "key": "headers"}},
            }
        ],
        "extraVolumes": [{"name": "overlay", "configMap": {"name": "overlay"}}],
        "extraVolumeMounts": [{"name": "overlay", "mountPath": "/overlay", "readOnly": True}],
        "replicaCount": 5,
    },
    # Values that no other case changes.
    "per-second-sentinel": {
        "redis": {
            "mode": "external",
            "external": {
                "type": "sentinel",
                "addresses": ["sentinel.example:26379"],
                "sentinelMaster": "primary",
                "sentinelPasswordSecret": "sentinel-login",
                "sentinelPasswordKey": "word",
            },
            "perSecond": {
                "enabled": True,
                "type": "sentinel",
                "addresses": ["sentinel.example:26379"],
                "sentinelMaster": "second",
                "database": 2,
                "username": "weir",
                "passwordSecret": "second-login",
                "passwordKey": "word",
                "sentinelPasswordSecret": "sentinel-login",
                "sentinelPasswordKey": "word",
                "tls": True,
            },
            "tls": {
                "enabled": True,
                "caSecret": "redis-ca",
                "caKey": "authorities.pem",
                "skipHostnameVerification": True,
            },
        },
        "tls": {
            "enabled": True,
            "secretName": "grpc",
            "clients": {"caSecret": "client-ca", "caKey": "authorities.pem"},
        },
        "test": {"caKey": "authorities.pem", "serverName": "limits.example"},
    },
    "public-certificate": {
        "controlPlane": {"enabled": True, "address": "a:1", "nodeId": "edge"},
        "tls": {"enabled": True, "secretName": "grpc"},
        "test": {"caKey": ""},
    },
    "control-plane-details": {
        "controlPlane": {
            "enabled": True,
            "address": "[::1]:18000",
            "nodeId": "edge",
            "cache": {"sizeLimit": "1Gi"},
            "tls": {"enabled": True, "caSecret": "control-ca", "caKey": "authorities.pem"},
        },
    },
    "monitor-details": {
        "metrics": {
            "serviceMonitor": {
                "enabled": True,
                "interval": "20s",
                "scrapeTimeout": "5s",
                "metricRelabelings": [{"action": "labeldrop", "regex": "x"}],
            },
            "dashboards": {"enabled": True, "labels": {"dashboards": "edge"}},
            "reference": {"enabled": True, "path": "/stats"},
        }
    },
    "pod-monitor-details": {
        "metrics": {
            "podMonitor": {
                "enabled": True,
                "namespace": "monitoring",
                "labels": {"release": "stack"},
                "scrapeTimeout": "5s",
                "relabelings": [{"action": "labeldrop", "regex": "x"}],
            }
        }
    },
    "details": {
        "image": {"tag": "0.1.1"},
        "redis": {
            "bundled": {
                "image": "valkey/valkey:8",
                "maxmemory": "1gb",
                "resources": {"limits": {"memory": "2Gi"}},
                "nodeSelector": {"disk": "none"},
                "tolerations": [{"key": "edge", "operator": "Exists"}],
            }
        },
        "tls": {
            "enabled": True,
            "certManager": {
                "enabled": True,
                "issuerRef": {"name": "internal", "group": "awspca.cert-manager.io"},
                "duration": "720h",
                "renewBefore": "240h",
                "privateKey": {"algorithm": "RSA", "size": 4096},
            },
        },
        "metrics": {"annotations": False},
        "podDisruptionBudget": {"maxUnavailable": "25%"},
        "headlessService": {"annotations": {"a": "b"}},
        "service": {"trafficDistribution": "PreferClose"},
        "serviceAccount": {"name": "weir", "annotations": {"a": "b"}},
        "resources": {"requests": {"cpu": 2}},
        "securityContext": {"runAsNonRoot": True},
    },
    # OpenShift chooses the user.
    "any-user": {
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        "redis": {"mode": "none"},
    },
}

# The mistake, the values, and a part of the error message.
REFUSED = [
    ("a misspelled value", {"replicacount": 3}, "'replicacount' not allowed"),
    ("a misspelled setting", {"settings": {"LOGLEVEL": "debug"}}, "'LOGLEVEL' not allowed"),
    (
        "a setting that another value sets",
        {"settings": {"REDIS_URL": "a:6379"}},
        "'REDIS_URL' not allowed",
    ),
    (
        "limits as an object",
        {"limits": {"files": {"a.yaml": {"domain": "a"}}}},
        "limits/files/a.yaml",
    ),
    (
        "two sources of limits",
        {"limits": {"existingConfigMap": "a", "files": {"a.yaml": SHOP}}},
        "exclude each other",
    ),
    (
        "files beside a control plane",
        {"limits": {"existingConfigMap": "a"}, "controlPlane": {"enabled": True}},
        "replaces files of limits",
    ),
    (
        "a control plane without an address",
        {"controlPlane": {"enabled": True, "nodeId": "a"}},
        "needs controlPlane.address",
    ),
    ("no Redis", {"redis": {"mode": "external"}}, "redis.external.addresses is empty"),
    (
        "a Redis that is not used",
        {"redis": {"external": {"addresses": ["a:6379"]}}},
        "redis.mode is not external",
    ),
    (
        "an address without a port",
        {"redis": {"mode": "external", "external": {"addresses": ["a"]}}},
        "redis/external/addresses/0",
    ),
    (
        "two addresses of one Redis",
        {"redis": {"mode": "external", "external": {"addresses": ["a:1", "b:1"]}}},
        "type is single",
    ),
    (
        "Sentinels without a primary",
        {"redis": {"mode": "external", "external": {"type": "sentinel", "addresses": ["a:1"]}}},
        "sentinelMaster is empty",
    ),
    (
        "a primary without Sentinels",
        {"redis": {"mode": "external", "external": {"addresses": ["a:1"], "sentinelMaster": "a"}}},
        "settings of Sentinels, but its type is single",
    ),
    (
        "a database of a cluster",
        {
            "redis": {
                "mode": "external",
                "external": {"type": "cluster", "addresses": ["a:1"], "database": 1},
            }
        },
        "database 0 only",
    ),
    (
        "a user without a password",
        {"redis": {"mode": "external", "external": {"addresses": ["a:1"], "username": "u"}}},
        "needs redis.external.passwordSecret",
    ),
    (
        "a second Redis without a first",
        {"redis": {"perSecond": {"enabled": True, "addresses": ["a:1"]}}},
        "needs redis.mode: external",
    ),
    (
        "a second Redis without an address",
        {
            "redis": {
                "mode": "external",
                "external": {"addresses": ["a:1"]},
                "perSecond": {"enabled": True},
            }
        },
        "redis.perSecond.addresses is empty",
    ),
    (
        "TLS to the bundled Redis",
        {"redis": {"tls": {"enabled": True}}},
        "redis.tls needs redis.mode: external",
    ),
    ("TLS without a certificate", {"tls": {"enabled": True}}, "needs tls.secretName"),
    (
        "cert-manager without an issuer",
        {"tls": {"enabled": True, "certManager": {"enabled": True}}},
        "issuerRef.name",
    ),
    ("a certificate without TLS", {"tls": {"certManager": CERT_MANAGER}}, "need tls.enabled"),
    ("clients without TLS", {"tls": {"clients": {"caSecret": "a"}}}, "need tls.enabled"),
    (
        "a name without authorities",
        {"tls": {"enabled": True, "secretName": "a", "clients": {"name": "b"}}},
        "needs tls.clients.caSecret",
    ),
    (
        "an autoscaler that cannot grow",
        {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 4}},
        "less than autoscaling.minReplicas",
    ),
    (
        "an autoscaler without a metric",
        {"autoscaling": {"enabled": True, "targetCPUUtilizationPercentage": None}},
        "needs a metric",
    ),
    (
        "two monitors",
        {"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
        "scrape each pod twice",
    ),
    (
        "an alert that is none",
        {"metrics": {"prometheusRule": {"enabled": True, "disabled": ["WeirAbsend"]}}},
        "no alert WeirAbsend",
    ),
    (
        "a port that is taken",
        {"metrics": {"reference": {"enabled": True, "port": 8080}}},
        "metrics/reference/port",
    ),
    ("a peer that is everyone", {"networkPolicy": {"ask": [{}]}}, "networkPolicy/ask/0"),
    (
        "no way to Redis",
        {
            "networkPolicy": {"egress": {"enabled": True}},
            "redis": {"mode": "external", "external": {"addresses": ["a:1"]}},
        },
        "name them in networkPolicy.egress.rules",
    ),
    (
        "too short an end after minutes",
        {"settings": {"DRAIN_DELAY": "1m30s"}},
        "terminationGracePeriodSeconds is less than 100",
    ),
    (
        "too short an end",
        {"settings": {"DRAIN_DELAY": "55s"}},
        "terminationGracePeriodSeconds is less than 65",
    ),
    (
        "a variable twice",
        {"extraEnv": [{"name": "REPLICAS", "value": "3"}]},
        "extraEnv sets REPLICAS",
    ),
    (
        "a setting twice",
        {"extraEnv": [{"name": "WORKERS", "value": "3"}]},
        "extraEnv and settings both set WORKERS",
    ),
    ("a name that is too long", {"fullnameOverride": "a" * 49}, "fullnameOverride"),
    ("no share of a limit", {"localReplicas": 0}, "localReplicas"),
]
