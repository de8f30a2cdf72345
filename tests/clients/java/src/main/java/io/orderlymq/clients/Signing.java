package io.orderlymq.clients;

import org.apache.rocketmq.remoting.RPCHook;

/** Signs requests with ak and sk; by reflection, because the oldest clients have no such classes. */
final class Signing {
    private static final String ACL = "org.apache.rocketmq.acl.common.";

    private Signing() {}

    /** Returns the hook that signs requests, or null for unsigned ones. */
    static RPCHook hook(Options options) throws ReflectiveOperationException {
        String key = options.text("ak", "");
        if (key.isEmpty()) {
            return null;
        }
        Class<?> credentials = Class.forName(ACL + "SessionCredentials");
        Object keys =
                credentials
                        .getConstructor(String.class, String.class)
                        .newInstance(key, options.text("sk", ""));
        return (RPCHook)
                Class.forName(ACL + "AclClientRPCHook").getConstructor(credentials).newInstance(keys);
    }
}
