package tests

import (
	"os"

	"sigs.k8s.io/apiserver-network-proxy/tests/framework"
)

func init() {
	if path := os.Getenv("SERVER_PROGRAM"); path != "" {
		Framework.ProxyServerRunner = &framework.ProgramServerRunner{Path: path}
	}
}
