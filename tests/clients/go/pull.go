//go:build !oldest

package main

import (
	"context"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
)

func init() {
	programs["poll"] = poll
}

// poll polls expected messages and acknowledges them; it hands back those whose body contains fail at their first delivery.
func poll(given options) {
	client, err := rocketmq.NewPullConsumer(consumerOptions(given)...)
	check(err)
	check(client.Subscribe(given["topic"], selector(given)))
	check(client.Start())
	event("started", map[string]interface{}{})
	end := time.Now().Add(time.Duration(given.number("seconds", 30)) * time.Second)
	for done := 0; done < given.number("expected", 1) && time.Now().Before(end); {
		request, err := client.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		check(err)
		result := consumer.ConsumeSuccess
		for _, message := range request.GetMsgList() {
			values := messageValues(message)
			event("deliver", values)
			if given["fail"] != "" && message.ReconsumeTimes == 0 {
				result = consumer.ConsumeRetryLater
				continue
			}
			event("done", values)
			done++
		}
		client.ACK(context.Background(), request, result)
	}
	check(client.Shutdown())
	event("finished", map[string]interface{}{})
}
