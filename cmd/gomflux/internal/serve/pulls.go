package serve

import (
	"context"
	"net"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/serve"
	"github.com/gomflux/gomflux/serve/pulls"
)

// puller returns what downloads models for clients.
func (o *serveOptions) puller(ctx context.Context, m *servedModels) *pulls.Puller {
	memory := cli.ModelMemory(ctx)
	return pulls.New(pulls.Config{
		Models: missingModels,
		Client: func() (*hub.Client, error) {
			client, err := hub.NewClient()
			if err == nil {
				client.UserAgent = "gomflux/" + gomflux.Version()
			}
			return client, err
		},
		Refusal:  o.pullRefusal(),
		Warnings: func(plan *hub.Plan) []string { return cli.Unusable(plan, memory) },
		Ended:    m.pulled,
		Log:      m.log,
	})
}

// pullRefusal returns why clients may not start downloads, "" if they may. Without flags they may
// if they all use this machine, since a download fills its disk, and is made with its user's token
// for the hub.
func (o *serveOptions) pullRefusal() string {
	host, _, _ := net.SplitHostPort(o.listen)
	switch {
	case hub.Offline():
		return "it is offline"
	case o.noPull:
		return "it was started with --no-pull"
	case !o.pull && (!serve.IsLoopback(host) || len(o.tokens) > 0 || len(o.allowedHosts) > 0 || o.baseURL != ""):
		return "other machines may use it, and it was started without --pull"
	}
	return ""
}

// missingModels lists the published models that are not here, or not complete.
func missingModels() (list []pulls.Model) {
	known, _ := cli.ListModels() // servedModels.list reports the error
	for _, k := range known {
		if k.Get == "" || !k.Supported || k.Here && k.Complete {
			continue
		}
		list = append(list, pulls.Model{
			Name: k.Name, Repo: k.Repo, Licence: k.Licence, Gated: k.Gated, Access: k.Access,
			Incomplete: k.Here || len(k.Unfinished) > 0, Command: k.Get,
		})
	}
	return list
}

// pulled logs the end of a download, after which the models are listed again.
func (m *servedModels) pulled(s pulls.Status) {
	took := s.Ended.Sub(s.Created).Round(time.Millisecond)
	log := m.log.With("model", s.Model, "client", s.Client, "bytes", s.Here, "took", took)
	if s.Err != nil {
		log.Warn("download", "error", s.Err.Error())
	} else {
		log.Info("download", "state", string(s.State))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed = nil
}
