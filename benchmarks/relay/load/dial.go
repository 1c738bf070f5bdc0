package main

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

const socks = "socks5:"

// dial connects, maybe by way of a server of SOCKS5, and sends the first bytes.
func dial(address string, head ...byte) (net.Conn, error) {
	front, target, isSocks := strings.Cut(strings.TrimPrefix(address, socks), ",")
	connection, err := net.DialTimeout("tcp", front, patience)
	if err != nil {
		return nil, err
	}
	connection.SetDeadline(time.Now().Add(patience))
	if isSocks {
		err = ask(connection, target)
	}
	if err == nil {
		_, err = connection.Write(head)
	}
	if err != nil {
		connection.Close()
		return nil, err
	}
	return connection, nil
}

// ask has a server of SOCKS5 (RFC 1928) lead to an address of IPv4.
func ask(connection net.Conn, target string) error {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	request := append([]byte{5, 1, 0, 1}, net.ParseIP(host).To4()...)
	request = binary.BigEndian.AppendUint16(request, uint16(number))
	var reply [10]byte
	for _, each := range []struct{ sent, wanted []byte }{{[]byte{5, 1, 0}, reply[:2]}, {request, reply[:]}} {
		if _, err := connection.Write(each.sent); err != nil {
			return err
		}
		if _, err := io.ReadFull(connection, each.wanted); err != nil {
			return err
		}
		if reply[1] != 0 {
			return errors.New("the server of SOCKS5 refused")
		}
	}
	return nil
}

func exchange(connection net.Conn, sent, got []byte) error {
	if _, err := connection.Write(sent); err != nil {
		return err
	}
	if _, err := io.ReadFull(connection, got); err != nil {
		return err
	}
	if string(sent) != string(got) {
		return errors.New("what came back is not what was sent")
	}
	return nil
}

func open(address string) error {
	connection, err := dial(address, opEcho)
	if err != nil {
		return err
	}
	defer connection.Close()
	return exchange(connection, []byte{7}, make([]byte, 1))
}
