package io.orderlymq.clients;

import java.lang.reflect.Method;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;

/** The message model's class moved to another package in 5.x; reflection works with both. */
final class Models {
    private Models() {}

    @SuppressWarnings({"unchecked", "rawtypes"})
    static void set(DefaultMQPushConsumer consumer, String name) throws ReflectiveOperationException {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Class model = method.getParameterTypes()[0];
                method.invoke(consumer, Enum.valueOf(model, name));
                return;
            }
        }
        throw new NoSuchMethodException("setMessageModel");
    }
}
