package framework

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	metricstest "sigs.k8s.io/apiserver-network-proxy/pkg/testing/metrics"
)

// ProgramServerRunner runs a server program with every flag that the suite's options have.
type ProgramServerRunner struct{ Path string }

type programServer struct {
	process *exec.Cmd
	ended   chan struct{}
	health  string
	agents  string
	socket  string
}

func (runner *ProgramServerRunner) Start(t testing.TB, wanted ProxyServerOpts) (ProxyServer, error) {
	options, err := serverOptions(t, wanted)
	if err != nil {
		return nil, err
	}
	command := exec.Command(runner.Path)
	options.Flags().VisitAll(func(flag *pflag.Flag) {
		value := flag.Value.String()
		if flag.Value.Type() == "stringSlice" {
			value = strings.Trim(value, "[]")
		}
		command.Args = append(command.Args, "--"+flag.Name+"="+value)
	})
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Start(); err != nil {
		return nil, err
	}
	server := &programServer{
		process: command,
		ended:   make(chan struct{}),
		health:  net.JoinHostPort(options.HealthBindAddress, strconv.Itoa(options.HealthPort)),
		agents:  net.JoinHostPort(options.AgentBindAddress, strconv.Itoa(options.AgentPort)),
		socket:  options.UdsName,
	}
	go func() { command.Wait(); close(server.ended) }()
	t.Cleanup(server.Stop)
	for begin := time.Now(); !checkLiveness(server.health); time.Sleep(50 * time.Millisecond) {
		if time.Since(begin) > ForeverTestTimeout {
			return nil, fmt.Errorf("%s does not answer at %s", runner.Path, server.health)
		}
	}
	return server, nil
}

func (server *programServer) AgentAddr() string { return server.agents }

func (server *programServer) FrontAddr() string { return server.socket }

func (server *programServer) Ready() bool { return checkReadiness(server.health) }

func (server *programServer) ConnectedBackends() (int, error) {
	families, err := scrapeMetrics(server.page())
	if err != nil {
		return 0, err
	}
	agents := 0
	for _, metric := range families["konnectivity_network_proxy_server_ready_backends"].GetMetric() {
		agents += int(metric.GetGauge().GetValue())
	}
	return agents, nil
}

func (server *programServer) Metrics() metricstest.ServerTester {
	return &metricstest.Tester{Endpoint: server.page()}
}

func (server *programServer) Stop() {
	server.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-server.ended:
	case <-time.After(5 * time.Second):
		server.process.Process.Kill()
		<-server.ended
	}
}

func (server *programServer) page() string { return "http://" + server.health + "/metrics" }
