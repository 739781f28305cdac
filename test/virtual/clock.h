// Virtual time, for runs in which nothing is computed (VIRTUAL_DRY=1). See clock.cc.
#pragma once

#include "dry.h"
#include "virtual.h"

namespace virtual_gpu {

bool dry();
const VirtualDry &dry_figures(); // the GPU that the configuration names and, in dry runs, what work costs on it
double clock_now();

// A mark is one recording of an event, with a reference count: it is reused when every holder has released it.
int mark_make();
void mark_release(int mark);
// Returns whether the mark has passed. If not, it ends the host's next pause when it passes.
bool mark_passed(int mark);
double mark_time(int mark); // of a mark that has passed

void line_add(int line, const Step &step); // a stream's next step; `line` is the stream's context
bool line_idle(int line);                  // like mark_passed, for all steps of the stream

// Makes the host wait, in virtual time, until done() is true. done() is called again when something that it watches has
// come, and whenever another host rings the bell.
void clock_wait(const std::function<bool()> &done, const std::string &what);

// Returns the seconds of one launch, from the memory that some of its blocks touch (traffic.cc).
double kernel_seconds(const VirtualLaunch &launch);
void traffic_touch(uintptr_t at, size_t bytes, bool writes);
bool traffic_counts();

} // namespace virtual_gpu
