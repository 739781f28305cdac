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
void mark_hold(int mark);
void mark_release(int mark);
// Returns whether the mark has passed. If not, it ends the host's next pause when it passes.
bool mark_passed(int mark);
double mark_time(int mark); // of a mark that has passed

// A call of NCCL's as a step of a stream.
struct Encounter : NcclCall {
    int size;      // ranks of the communicator; a message is met by two
    int64_t bytes; // of the message, or of the collective's full buffer
    int rounds;    // 2: an all-reduce
    int blocks;    // of its kernel, each a multiprocessor
    int cluster;   // blocks that need room in one GPC
    CostCollective collective;
};

// These functions add a stream's steps, in the order of the calls. `line` is the stream's context.
void line_work(int line, const Op &op);
void line_record(int line, int mark);
void line_wait(int line, int mark);
void line_meet(int line, const Encounter &encounter);
void line_flag(int line, int flag, uint32_t value, bool raises, double seconds);
void stream_meet(cudaStream_t stream, const Encounter &encounter); // device.cc
void stream_flag(cudaStream_t stream, int flag, uint32_t value, bool raises, double seconds);
bool line_idle(int line); // like mark_passed, for all steps of the stream

// Lets the host wait, in virtual time, until done() is true. It is checked again whenever another host rings the bell.
void clock_wait(const std::function<bool()> &done, const std::string &what);
void clock_wait_lines(const std::vector<int> &lines, const std::string &what);
void clock_wait_mark(int mark, const std::string &what);

// Returns the seconds of one launch, from the memory that some of its blocks touch (traffic.cc).
double kernel_seconds(const VirtualLaunch &launch);
void traffic_touch(uintptr_t at, size_t bytes, bool writes);
bool traffic_counts();

} // namespace virtual_gpu
