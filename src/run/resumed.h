// Says what a resumed run does differently from the run that saved its checkpoint.
#pragma once

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "config/config.h"

// Logs in one line which keys of `train` differ from the checkpoint's, and in another if the learning rate, which had
// decayed, rises again. Says nothing if training.json lacks them.
void resumed_tell(const ResumePoint *from, const Config *config, const Log *log);
