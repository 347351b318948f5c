//go:build tools

// Package controlplane names the programs that are built here, so that go.mod and go.sum hold what they need.
package controlplane

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
)
