// Keeps a process on the cores and the memory next to its GPU. Copies between a GPU and memory of another socket cross
// the link between sockets, and so do launches.
#ifndef NUMA_H
#define NUMA_H

#include <stdbool.h>

// Returns the NUMA node of a PCI device ("0000:3b:00.0") as sysfs (mounted at `sysfs`, "/sys") tells it; -1 if unknown.
int numa_node(const char *sysfs, const char *bus);

// Binds this thread, and all that it starts from now on, to those of its cores that the node has, and prefers the
// node's memory. Leaves the cores alone if none of the allowed ones is there (a launcher has chosen others). Returns
// whether the cores are the node's now.
bool numa_bind(const char *sysfs, int node);

#endif
