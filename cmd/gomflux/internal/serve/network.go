package serve

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/serve"
)

// validateNetwork refuses flags about addresses, names and clients that are wrong, and reads the
// tokens and the certificate.
func (o *serveOptions) validateNetwork(given func(string) bool) (err error) {
	if given("tls-cert") != given("tls-key") {
		return cli.UsageErrorf("--tls-cert and --tls-key need each other")
	}
	for _, name := range o.allowedHosts {
		if name == "" || strings.ContainsAny(name, "/:* ") {
			return cli.UsageErrorf("--allowed-host %q: expected a name without scheme and port, such as images.example.org", name)
		}
	}
	for _, origin := range o.allowedOrigins {
		if err := serve.CheckURL(origin, false); err != nil {
			return cli.UsageErrorf("--allowed-origin %q: %w, without a path", origin, err)
		}
	}
	if given("base-url") {
		if err := serve.CheckURL(o.baseURL, true); err != nil {
			return cli.UsageErrorf("--base-url %q: %w", o.baseURL, err)
		}
	}
	host, port, err := net.SplitHostPort(o.listen)
	if err != nil || port == "" {
		return cli.UsageErrorf("--listen %q: expected host:port, such as %s", o.listen, serveAddress)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return cli.UsageErrorf("--listen %q: the port must be a number up to 65535", o.listen)
	}
	if !serve.IsLoopback(host) && o.tokenFile == "" && !o.insecureNoToken {
		return cli.UsageErrorf("--listen %s: other machines could use the server (give --token-file FILE, or --insecure-no-token)",
			o.listen)
	}
	if o.tokenFile != "" {
		if o.tokens, err = serve.ReadTokens(o.tokenFile); err != nil {
			return cli.UsageErrorf("--token-file: %w", err)
		}
	}
	if given("tls-cert") {
		if o.certificate, err = serve.ReadCertificate(o.tlsCert, o.tlsKey); err != nil {
			return cli.UsageErrorf("--tls-cert %s, --tls-key %s: %w", o.tlsCert, o.tlsKey, err)
		}
	}
	return nil
}

// shared reports whether the server can have several clients: several tokens or, without tokens,
// several addresses.
func (o *serveOptions) shared(host string) bool {
	if o.tokenFile != "" {
		return len(o.tokens) > 1
	}
	return !serve.IsLoopback(host)
}

// tls returns the configuration for HTTPS, nil without a certificate.
func (o *serveOptions) tls(log *slog.Logger) *tls.Config {
	if o.certificate == nil {
		return nil
	}
	return o.certificate.Config(func(err error) {
		log.Warn("the changed certificate is not used", "cert", o.tlsCert, "key", o.tlsKey, "error", err.Error())
	})
}

// url returns the server's address for people on this machine.
func (o *serveOptions) url(a net.Addr) string {
	scheme := "http"
	if o.certificate != nil {
		scheme = "https"
	}
	host, _, _ := net.SplitHostPort(o.listen)
	_, port, _ := net.SplitHostPort(a.String())
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/"
}
