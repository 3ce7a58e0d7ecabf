module github.com/gomflux/gomflux

go 1.26
