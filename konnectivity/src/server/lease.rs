//! The lease by which agents count this server.

use std::sync::Arc;

use super::proxy::Proxy;

/// The name of a server's lease.
pub(super) fn name(server_id: &str) -> String {
    format!("konnectivity-proxy-server-{server_id}")
}

/// Renews this server's lease, deletes expired ones, and counts the others.
pub(super) async fn keep(proxy: Arc<Proxy>) {
    let Some((cluster, options)) = proxy.options.leases.clone() else { return };
    let server = &proxy.options.server_id;
    let name = self::name(server);
    let mut ticks = tokio::time::interval(crate::kubernetes::RENEWAL);
    loop {
        ticks.tick().await;
        if let Err(error) = cluster.renew(&options, &name, server).await {
            tracing::warn!("lease {name}: {error}");
        }
        match cluster.count(&options, |it| proxy.metrics.lease_lists.observe(it)).await {
            Err(error) => tracing::warn!("leases: {error}"),
            Ok((valid, expired)) => {
                proxy.set_server_count(valid.max(1));
                for lease in expired {
                    let observe = |it: &_| proxy.metrics.lease_deletes.observe(it);
                    match cluster.remove(&options, &lease, observe).await {
                        Ok(()) => proxy.metrics.culled_leases.inc(),
                        Err(error) => tracing::warn!("lease {lease}: {error}"),
                    }
                }
            }
        }
    }
}
