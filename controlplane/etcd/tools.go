//go:build tools

// Package controlplane names the program that is built here, so that go.mod and go.sum hold what it needs.
package controlplane

import _ "go.etcd.io/etcd/server/v3"
