package cli

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
)

// Version returns the version of the program, of Go and of the platform.
func Version() string {
	return fmt.Sprintf("gomflux %s %s %s/%s", gomflux.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// VersionInfo is what version prints as JSON. gomflux launch asks every machine for it.
type VersionInfo struct {
	Version  string    `json:"version"`
	Go       string    `json:"go"`
	Platform string    `json:"platform"`
	System   string    `json:"system"`
	MLX      string    `json:"mlx,omitempty"`
	GPU      bool      `json:"gpu"`
	Backends []string  `json:"backends"` // that connect processes
	Problem  string    `json:"problem,omitempty"`
	Time     time.Time `json:"time,omitzero"`

	Listen []Listener `json:"listen,omitempty"`
	Client string     `json:"client,omitempty"` // address of the other end of the ssh connection
}

// A Listener is an address of this machine on which another process could listen, or why not.
type Listener struct {
	Address string `json:"address"`
	Problem string `json:"problem,omitempty"`
}

// NewVersionInfo describes this program and its MLX, and tries to listen on addresses: without a host on
// that of the ssh connection or else the loopback, with port 0 on a free one.
func NewVersionInfo(ctx context.Context, addresses []string) VersionInfo {
	v := VersionInfo{Version: gomflux.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		System: cmp.Or(systemName(), runtime.GOOS), Time: time.Now()}
	here := "127.0.0.1"
	if ssh := strings.Fields(os.Getenv("SSH_CONNECTION")); len(ssh) == 4 {
		v.Client, here = ssh[0], ssh[2]
	}
	for _, address := range addresses {
		host, port, _ := net.SplitHostPort(address)
		l, err := net.Listen("tcp4", net.JoinHostPort(cmp.Or(host, here), port))
		if err != nil {
			v.Listen = append(v.Listen, Listener{address, err.Error()})
			continue
		}
		defer l.Close() // only now, so that free ports differ
		v.Listen = append(v.Listen, Listener{Address: l.Addr().String()})
	}
	_, err := mlx.Open()
	if err == nil {
		v.GPU, err = hasGPU(ctx)
	}
	if err == nil {
		err = mlx.Do(ctx, func() error {
			v.MLX, v.Backends = mlx.Version(), mlx.GroupBackends()
			return nil
		})
	}
	if err != nil {
		v.Problem = err.Error()
	}
	return v
}

func (VersionInfo) Text(p *ui.Page) { p.Printf("%s\n", Version()) }
