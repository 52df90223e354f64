"""One machine: a plan in, a result out.

supervisor    everything of a study descends from one small process (`supervisor_process`), so that nothing outlives the
              tool and `Run.end` leaves nothing of a run
fork_server   a process that has come to where trials begin, from which they are forked
processes     what the kernel tells of processes
traces        what a run tells while it goes on
watch         staying with a run to its end: the one loop
hang          when silence is a hang, and when it is one that is known
observe       from the traces of a run that is over to what was seen of it
verdict       what that means under the failure under study: the one judge
"""
