//go:build !oldest

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func init() {
	programs["request"] = request
	programs["reply"] = reply
}

// request sends count requests, every second one with a callback, and reports each answer.
//
// The client identifies itself to brokers a second after its start, and gets no answers before: a request without an
// answer is repeated.
func request(given options) {
	client, err := rocketmq.NewProducer(producerOptions(given)...)
	check(err)
	check(client.Start())
	event("started", map[string]interface{}{})
	patience := time.Duration(given.number("patience", 2000)) * time.Millisecond
	for n, tries := 0, given.number("tries", 5); n < given.number("count", 2) && tries > 0; {
		answer, err := ask(client, patience, n%2 == 1, primitive.NewMessage(given["topic"], []byte(fmt.Sprintf("question %d", n))))
		if err != nil {
			event("failed", map[string]interface{}{"body": n, "text": err.Error()})
			tries--
			continue
		}
		event("answer", map[string]interface{}{"body": string(answer.Body)})
		n++
	}
	_ = client.Shutdown()
	event("finished", map[string]interface{}{})
}

func ask(client rocketmq.Producer, patience time.Duration, async bool, question *primitive.Message) (*primitive.Message, error) {
	if !async {
		return client.Request(context.Background(), patience, question)
	}
	// The callback is called twice for an answer, and up to ten minutes late if there is none.
	answers := make(chan *primitive.Message, 2)
	err := client.RequestAsync(context.Background(), patience, func(_ context.Context, answer *primitive.Message, _ error) {
		answers <- answer
	}, question)
	if err != nil {
		return nil, err
	}
	select {
	case answer := <-answers:
		return answer, nil
	case <-time.After(patience):
		return nil, fmt.Errorf("no answer")
	}
}

// reply answers each message of its topic until the end of its standard input.
func reply(given options) {
	answering, err := rocketmq.NewProducer(producerOptions(given)...)
	check(err)
	check(answering.Start())
	client, err := rocketmq.NewPushConsumer(consumerOptions(given)...)
	check(err)
	check(client.Subscribe(given["topic"], selector(given),
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				answer, err := consumer.CreateReplyMessage(message, nil)
				check(err)
				answer.Body = []byte("answer to " + string(message.Body))
				_, err = answering.SendSync(context.Background(), answer)
				event("replied", map[string]interface{}{"to": consumer.GetReplyToClient(message), "text": fmt.Sprint(err)})
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(client.Start())
	event("started", map[string]interface{}{})
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = client.Shutdown()
	event("finished", map[string]interface{}{})
}
