// A go-nsq producer that numbers what it publishes, for `cargo xtask suite steer`.
//
// It publishes until its standard input ends, then waits for the answers and prints what it sent and which of it failed
// as a line of JSON.
package main

import (
	"encoding/json"
	"flag"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/nsqio/go-nsq"
)

// window is how many publishes may be without an answer.
const window = 64

// tally is what the producer tells at the end.
type tally struct {
	Sent   int   `json:"sent"`
	Failed []int `json:"failed"`
	next   int
}

// answered notes an answer, which must be that of the oldest publish without one.
func (t *tally) answered(transaction *nsq.ProducerTransaction) {
	number := transaction.Args[0].(int)
	if number != t.next {
		log.Fatalf("answer to publish %d, expected %d", number, t.next)
	}
	t.next++
	if transaction.Error != nil {
		t.Failed = append(t.Failed, number)
	}
}

func main() {
	address := flag.String("address", "127.0.0.1:4150", "where to publish")
	topic := flag.String("topic", "go", "what to publish to")
	flag.Parse()
	producer, err := nsq.NewProducer(*address, nsq.NewConfig())
	if err != nil {
		log.Fatal(err)
	}
	producer.SetLoggerLevel(nsq.LogLevelWarning)
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	done := make(chan *nsq.ProducerTransaction, window)
	told := tally{Failed: []int{}}
	for stopped := false; !stopped; {
		for burst := 0; burst < window/2; burst++ {
			for told.Sent-told.next >= window {
				told.answered(<-done)
			}
			if err := producer.PublishAsync(*topic, []byte(strconv.Itoa(told.Sent)), done, told.Sent); err != nil {
				log.Fatal(err)
			}
			told.Sent++
		}
		select {
		case <-stop:
			stopped = true
		case <-time.After(5 * time.Millisecond):
		}
	}
	for told.next < told.Sent {
		told.answered(<-done)
	}
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		log.Fatal(err)
	}
	producer.Stop()
}
