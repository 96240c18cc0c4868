module example.org/k8s-triage

go 1.22

require k8s.io/apimachinery v0.30.0
