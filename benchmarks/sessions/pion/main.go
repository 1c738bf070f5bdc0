// One end of a data channel of pion; see ../channel_peer.py.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/pion/webrtc/v4"
)

const (
	pieceBytes = 65536
	high       = 1 << 20
	low        = 1 << 18
)

var pattern = func() []byte {
	made := make([]byte, pieceBytes)
	for place := range made {
		made[place] = byte(31*place + 7)
	}
	return made
}()

func piece(number int) []byte {
	made := append([]byte(nil), pattern...)
	binary.BigEndian.PutUint64(made, uint64(number))
	return made
}

func digestOf(size int) string {
	digest := sha256.New()
	for number := 0; number < size/pieceBytes; number++ {
		digest.Write(piece(number))
	}
	return hex.EncodeToString(digest.Sum(nil))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

type end struct {
	channel    *webrtc.DataChannel
	isAnswerer bool
	digest     hash.Hash
	left       int
	room       chan struct{}
	texts      chan string
	echoes     chan struct{}
}

func (e *end) attach(channel *webrtc.DataChannel) {
	e.channel = channel
	channel.SetBufferedAmountLowThreshold(low)
	channel.OnBufferedAmountLow(func() {
		select {
		case e.room <- struct{}{}:
		default:
		}
	})
	channel.OnMessage(e.take)
	if !e.isAnswerer {
		channel.OnOpen(func() { fmt.Println("open") })
	}
}

func (e *end) take(message webrtc.DataChannelMessage) {
	switch {
	case message.IsString && e.isAnswerer:
		word, size, _ := strings.Cut(string(message.Data), " ")
		count, err := strconv.Atoi(size)
		check(err)
		if word == "up" {
			e.digest, e.left = sha256.New(), count
		} else {
			go e.pour(count)
		}
	case message.IsString:
		e.texts <- string(message.Data)
	case e.left > 0:
		e.digest.Write(message.Data)
		if e.left -= len(message.Data); e.left == 0 {
			found := hex.EncodeToString(e.digest.Sum(nil))
			if e.isAnswerer {
				check(e.channel.SendText(found))
			} else {
				e.texts <- found
			}
		}
	case e.isAnswerer:
		check(e.channel.Send(message.Data))
	default:
		e.echoes <- struct{}{}
	}
}

func (e *end) pour(size int) {
	for number := 0; number < size/pieceBytes; number++ {
		for e.channel.BufferedAmount() > high {
			<-e.room
		}
		check(e.channel.Send(piece(number)))
	}
}

func (e *end) do(order string) float64 {
	word, number, _ := strings.Cut(order, " ")
	size, err := strconv.Atoi(number)
	check(err)
	if word == "ping" {
		spent := make([]float64, size)
		for count := range spent {
			begun := time.Now()
			check(e.channel.Send(pattern[:64]))
			<-e.echoes
			spent[count] = time.Since(begun).Seconds()
		}
		sort.Float64s(spent)
		return spent[size/2]
	}
	size -= size % pieceBytes
	wanted := digestOf(size)
	begun := time.Now()
	if word == "down" {
		e.digest, e.left = sha256.New(), size
	}
	check(e.channel.SendText(fmt.Sprintf("%s %d", word, size)))
	if word == "up" {
		e.pour(size)
	}
	found := <-e.texts
	seconds := time.Since(begun).Seconds()
	if found != wanted {
		panic("what arrived is not what was sent")
	}
	return seconds
}

type described struct {
	SDP string `json:"sdp"`
}

func main() {
	settings := webrtc.SettingEngine{}
	settings.SetIncludeLoopbackCandidate(true)
	api := webrtc.NewAPI(webrtc.WithSettingEngine(settings))
	connection, err := api.NewPeerConnection(webrtc.Configuration{})
	check(err)
	e := &end{
		isAnswerer: os.Args[1] == "answer",
		room:       make(chan struct{}, 1),
		texts:      make(chan string, 1),
		echoes:     make(chan struct{}, 1),
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	hear := func() webrtc.SessionDescription {
		lines.Scan()
		var found described
		check(json.Unmarshal(lines.Bytes(), &found))
		kind := webrtc.SDPTypeAnswer
		if e.isAnswerer {
			kind = webrtc.SDPTypeOffer
		}
		return webrtc.SessionDescription{Type: kind, SDP: found.SDP}
	}
	say := func(description webrtc.SessionDescription, err error) {
		check(err)
		gathered := webrtc.GatheringCompletePromise(connection)
		check(connection.SetLocalDescription(description))
		<-gathered
		text, err := json.Marshal(described{connection.LocalDescription().SDP})
		check(err)
		fmt.Println(string(text))
	}
	if e.isAnswerer {
		connection.OnDataChannel(e.attach)
		check(connection.SetRemoteDescription(hear()))
		say(connection.CreateAnswer(nil))
	} else {
		channel, err := connection.CreateDataChannel("bench", nil)
		check(err)
		e.attach(channel)
		say(connection.CreateOffer(nil))
		check(connection.SetRemoteDescription(hear()))
	}
	for lines.Scan() {
		fmt.Println(e.do(lines.Text()))
	}
}
