package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func init() {
	programs["send"] = send
}

// producerOptions returns the options of a producer from the command line.
func producerOptions(given options) []producer.Option {
	made := []producer.Option{
		producer.WithNameServer(given.nameServers()),
		producer.WithGroupName(given.text("group", "go-producers")),
		producer.WithRetry(given.number("retries", 2)),
		producer.WithNamespace(given["namespace"]),
		producer.WithCredentials(given.credentials()),
	}
	if domain, found := given["domain"]; found {
		made = append(made, producer.WithNameServerDomain(domain))
	}
	if name, found := given["instance"]; found {
		made = append(made, producer.WithInstanceName(name))
	}
	switch given.text("selector", "hash") {
	case "hash":
		made = append(made, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	case "manual":
		made = append(made, producer.WithQueueSelector(producer.NewManualQueueSelector()))
	case "random":
		made = append(made, producer.WithQueueSelector(producer.NewRandomQueueSelector()))
	case "robin":
		made = append(made, producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()))
	}
	if given.is("trace") {
		made = append(made, producer.WithTrace(given.trace()))
	}
	return append(made, laterProducerOptions(given)...)
}

// send sends count messages with keys different sharding keys, pause ms apart; the body is "key:step".
// how is sync, async, oneway or batch. With retry=true a failed send is tried again with the same message until it is acknowledged.
func send(given options) {
	client, err := rocketmq.NewProducer(producerOptions(given)...)
	check(err)
	check(client.Start())
	event("started", map[string]interface{}{})
	var batch []*primitive.Message
	var asked sync.WaitGroup
	for n := 0; n < given.number("count", 10); n++ {
		key := fmt.Sprintf("key-%d", n%given.number("keys", 1))
		message := newMessage(given, key, n)
		time.Sleep(time.Duration(given.number("pause", 0)) * time.Millisecond)
		switch given.text("how", "sync") {
		case "batch":
			batch = append(batch, message)
			continue
		case "oneway":
			check(client.SendOneWay(context.Background(), message))
			continue
		case "async":
			asked.Add(1)
			err := client.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
				sent(key, n, result, err)
				asked.Done()
			}, message)
			if err != nil {
				sent(key, n, nil, err)
				asked.Done()
			}
			continue
		}
		result, err := client.SendSync(context.Background(), message)
		for err != nil && given.is("retry") {
			time.Sleep(100 * time.Millisecond)
			result, err = client.SendSync(context.Background(), message)
		}
		sent(key, n, result, err)
	}
	if len(batch) > 0 {
		result, err := client.SendSync(context.Background(), batch...)
		sent("", len(batch), result, err)
	}
	asked.Wait()
	if given.is("trace") {
		time.Sleep(time.Second) // the client writes them behind its producer's back
	}
	_ = client.Shutdown()
	event("finished", map[string]interface{}{})
}

func newMessage(given options, key string, n int) *primitive.Message {
	body := fmt.Sprintf("%s:%d", key, n)
	body += strings.Repeat(".", max(0, given.number("size", 0)-len(body)))
	message := primitive.NewMessage(given["topic"], []byte(body))
	message.WithKeys([]string{key})
	message.WithShardingKey(key)
	if given["tag"] != "" {
		message.WithTag(given["tag"])
	}
	if colours, found := given["colours"]; found {
		some := strings.Split(colours, ",")
		message.WithProperty("colour", some[n%len(some)])
	}
	message.WithDelayTimeLevel(given.number("delay", 0))
	if given["delay"] == "" {
		message.RemoveProperty(primitive.PropertyDelayTimeLevel)
	}
	if queue, found := given["queue"]; found {
		broker, id, _ := strings.Cut(queue, ":")
		message.Queue = &primitive.MessageQueue{
			Topic: given["topic"], BrokerName: broker, QueueId: options{"id": id}.number("id", 0),
		}
	}
	return message
}

func sent(key string, n int, result *primitive.SendResult, err error) {
	if err != nil {
		event("failed", map[string]interface{}{"key": key, "body": n, "text": err.Error()})
		return
	}
	event("ack", map[string]interface{}{
		"key": key, "body": n, "status": int(result.Status), "offset": result.QueueOffset,
		"queue": fmt.Sprintf("%s:%d", result.MessageQueue.BrokerName, result.MessageQueue.QueueId),
		"msgId": result.MsgID, "offsetMsgId": result.OffsetMsgID, "traced": result.TraceOn,
	})
}
